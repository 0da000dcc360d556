// SPDX-License-Identifier: Apache-2.0

package nfnl

import "golang.org/x/sys/unix"

// BaseChain is a chain that is attached to a hook, of any table.
type BaseChain struct {
	Table    Table
	Name     string
	Type     string   // "filter", "nat" or "route"
	Hook     uint32   // NF_INET_PRE_ROUTING ...
	Priority int32    // lower runs first
	Drops    bool     // its policy is drop
	Devices  []Device // of a chain at interfaces: of family netdev, and of inet at the hook ingress
}

// BaseChains returns the base chains of all tables of a family, also those of dormant tables, which are not attached.
func (c *Conn) BaseChains(f Family) (all []BaseChain, err error) {
	err = Undisturbed(func() error {
		all = nil
		return c.request(unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP, uint8(f), nil, func(body []byte) {
			hook := Attr(body, unix.NFTA_CHAIN_HOOK)
			if hook == nil {
				return
			}
			policy := Attr(body, unix.NFTA_CHAIN_POLICY)
			const nftaHookDevs = 4 // the devices of a chain (NFTA_HOOK_DEVS, Linux 5.5)
			all = append(all, BaseChain{
				Devices:  parseDevices(Attr(hook, nftaHookDevs)),
				Table:    Table{Family: f, Name: cString(Attr(body, unix.NFTA_CHAIN_TABLE))},
				Name:     cString(Attr(body, unix.NFTA_CHAIN_NAME)),
				Type:     cString(Attr(body, unix.NFTA_CHAIN_TYPE)),
				Hook:     be32(Attr(hook, unix.NFTA_HOOK_HOOKNUM)),
				Priority: int32(be32(Attr(hook, unix.NFTA_HOOK_PRIORITY))),
				Drops:    policy != nil && Verdict(be32(policy)) == Drop,
			})
		})
	})
	return all, err
}

// Of nfnetlink_hook (Linux 5.14).
const (
	msgGetHook    = unix.NFNL_SUBSYS_HOOK << 8
	nfnlaHookNum  = 1
	nfnlaPriority = 2
	nfnlaChain    = 6
	nfnlaType     = 2 // in nfnlaChain
	typeBPF       = 2
)

// Programs returns the priorities of the BPF programs at a hook (links of the type netfilter, Linux 6.4). The error is EINVAL if
// the kernel does not list what is at hooks.
func (c *Conn) Programs(f Family, hook uint32) (priorities []int32, err error) {
	var a attrs
	a.be32(nfnlaHookNum, hook)
	err = c.request(msgGetHook, unix.NLM_F_DUMP, uint8(f), a, func(body []byte) {
		if typ := Attr(Attr(body, nfnlaChain), nfnlaType); typ != nil && be32(typ) == typeBPF {
			priorities = append(priorities, int32(be32(Attr(body, nfnlaPriority))))
		}
	})
	return priorities, err
}
