// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"encoding/binary"

	"github.com/google/nftables/expr"
	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"golang.org/x/sys/unix"
)

// Names of chains, beside those of sides.
const (
	chainPrerouting    = "prerouting"
	chainOutput        = "output"
	chainInput         = "input"
	chainPostrouting   = "postrouting"
	chainServices      = "services"
	chainClusterIP     = "cluster-ip"
	chainExternal      = "external"
	chainExternalLocal = "external-local"
	chainSources       = "check-source"
	chainDispatch      = "dispatch"
	chainReject        = "reject"
	chainDrop          = "drop"
	chainMasquerade    = "masquerade"
	chainAffinity      = "affinity" // of a side
)

// chains are all chains but those of sides. The base chains have the priorities
// that nft calls dstnat and srcnat, as kube-proxy's do, but the latter is one less:
// the kernel asks no further chain once one has masqueraded, and where that is
// somebody else's, no client's backend would be remembered.
var chains = []nfnl.Chain{
	{Name: chainPrerouting, Hook: &nfnl.Hook{Type: "nat", Num: unix.NF_INET_PRE_ROUTING, Priority: -100}},
	{Name: chainOutput, Hook: &nfnl.Hook{Type: "nat", Num: unix.NF_INET_LOCAL_OUT, Priority: -100}},
	{Name: chainInput, Hook: &nfnl.Hook{Type: "nat", Num: unix.NF_INET_LOCAL_IN, Priority: 99}},
	{Name: chainPostrouting, Hook: &nfnl.Hook{Type: "nat", Num: unix.NF_INET_POST_ROUTING, Priority: 99}},
	{Name: chainServices},
	{Name: chainClusterIP},
	{Name: chainExternal},
	{Name: chainExternalLocal},
	{Name: chainSources},
	{Name: chainDispatch},
	{Name: chainReject},
	{Name: chainDrop},
	{Name: chainMasquerade},
}

// Registers, 4 bytes each (NFT_REG32_00 is 8). A look-up's value takes two, of
// which the second one counts.
const (
	regKey       = 8  // address, protocol and port: up to 6 registers
	regValue     = 16 // unused word
	regValueWord = 17 // pool, then the size to draw below
	regSlot      = 18 // beside the pool, as endpoints' key has it
)

const (
	icmpPort          = 3      // ICMP_PORT_UNREACH
	icmp6Port         = 4      // ICMPV6_PORT_UNREACH
	conntrackDNATFlag = 1 << 5 // IPS_DST_NAT
)

// ruleWriter adds rules to a batch and keeps the first error.
type ruleWriter struct {
	*schema
	batch *nfnl.Batch
	err   error
}

func (w *ruleWriter) rule(chain, comment string, parts ...[]expr.Any) {
	var all []expr.Any
	for _, p := range parts {
		all = append(all, p...)
	}
	if err := w.batch.AddRule(w.table, chain, comment, all...); err != nil && w.err == nil {
		w.err = err
	}
}

// static writes the rules that depend on configuration alone, but for entry's.
func (w *ruleWriter) static(c dataplane.Config, full *desired.Change) {
	cluster := &w.sides[desired.Cluster]
	mark := uint32(1) << c.MasqueradeBit
	for range 2 { // see dispatch
		w.rule(chainServices, "", w.frontend(), in(w.external), goTo(chainExternal))
		w.rule(chainServices, "", w.load(w.daddr), in(w.clusterIPs), goTo(chainClusterIP))
	}
	w.rule(chainServices, "no Service has this address", w.load(w.daddr), in(w.serviceCIDRs), notOurs(), drop())

	w.masquerade(chainClusterIP, full.Masquerade.ClusterIPs, full.Local, mark)
	w.rule(chainClusterIP, "", goTo(chainDispatch))

	for range 2 { // see dispatch
		w.rule(chainExternal, "", w.frontend(), in(w.restricted), jump(chainSources))
		w.rule(chainExternal, "", w.frontend(), inMap(w.sides[desired.Local].frontends), goTo(chainExternalLocal))
	}
	w.masquerade(chainExternal, full.Masquerade.External, full.Local, mark)
	w.rule(chainExternal, "", goTo(chainDispatch))

	w.rule(chainSources, "", w.frontend(), w.loadTo(w.saddr, w.afterFrontend()), in(w.sources), ret())
	w.rule(chainSources, "who is not let in", drop())

	w.externalLocal(full, mark)

	w.dispatch(chainDispatch, cluster)
	w.dispatch(chainDispatch, &w.sides[desired.Local]) // internal traffic that may go to local backends only
	w.rule(chainDispatch, "not while its size changes", w.frontend(), inMap(cluster.frontends), drop())
	w.rule(chainDispatch, "", notOurs(), goTo(chainReject))

	w.rule(chainReject, "", protocol(unix.IPPROTO_TCP), []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}})
	code := uint8(icmpPort)
	if w.table.Family == nfnl.IPv6 {
		code = icmp6Port
	}
	w.rule(chainReject, "", []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: code}})
	w.rule(chainDrop, "no endpoint that traffic policy allows", drop())

	w.rule(chainInput, rememberComment, w.remembered())
	w.rule(chainPostrouting, rememberComment, w.remembered())
	w.rule(chainPostrouting, "", marked(mark), goTo(chainMasquerade))
	w.rule(chainPostrouting, "a pod that reaches itself", dnatted(), w.load(w.saddr), w.loadTo(w.daddr, regKey+w.addrLen/4), in(w.hairpin), goTo(chainMasquerade))
	w.rule(chainMasquerade, "", clearMark(mark))
	w.rule(chainMasquerade, "", []expr.Any{&expr.Masq{FullyRandom: true}})
}

// masquerade writes the rule that marks what is masqueraded.
func (w *ruleWriter) masquerade(chain string, m desired.Masquerade, local desired.LocalTraffic, mark uint32) {
	switch from := w.notFromPod(local); {
	case m == desired.MasqueradeAlways:
		w.rule(chain, "", setMark(mark))
	case m == desired.MasqueradeNode:
		w.rule(chain, "from this node", fromNode(), setMark(mark))
	case from != nil:
		w.rule(chain, "not from a pod", from, setMark(mark))
	}
}

// entry writes the rules that lead packets to Services.
func (w *ruleWriter) entry() {
	w.rule(chainPrerouting, "", jump(chainServices))
	w.rule(chainOutput, "", jump(chainServices))
}

// externalLocal writes the chain for external traffic that may go to local
// backends only. What starts on this node may go to all, as if it had gone out to
// a load balancer and come in again somewhere else.
func (w *ruleWriter) externalLocal(full *desired.Change, mark uint32) {
	if from := w.fromPod(full.Local); from != nil {
		w.rule(chainExternalLocal, "from a pod", from, goTo(chainDispatch))
	}
	w.masquerade(chainExternalLocal, full.Masquerade.Local, full.Local, mark)
	w.rule(chainExternalLocal, "from this node", fromNode(), goTo(chainDispatch))
	w.dispatch(chainExternalLocal, &w.sides[desired.Local])
	w.rule(chainExternalLocal, "not while its size changes", drop())
}

// dispatch writes the rules that go from a packet to the chain that picks one of
// its backends. While a transaction replaces the size of a pool, a look-up that
// straddles its commit can find neither the old nor the new element (up to Linux
// 6.16). The second try finds the new one.
func (w *ruleWriter) dispatch(chain string, d *side) {
	comment := "@" + d.frontends.Name + "[ip daddr . meta l4proto . th dport], its @pools, its @" + d.picks.Name
	for range 2 {
		w.rule(chain, comment, w.pool(d), []expr.Any{
			lookup(w.pools, regValueWord, regValue), matchZeroPrefix(regValue),
			lookup(d.picks, regValueWord, unix.NFT_REG_VERDICT),
		})
		comment = "the same once more: see the documentation"
	}
}

// frontend loads the key of frontends.
func (s *schema) frontend() []expr.Any { return s.frontendTo(regKey) }

func (s *schema) frontendTo(reg uint32) []expr.Any {
	next := reg + s.addrLen/4
	return append(s.loadTo(s.daddr, reg), &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: next}, dport(next+1))
}

// afterFrontend is the register that follows frontend's.
func (s *schema) afterFrontend() uint32 { return regKey + s.addrLen/4 + 2 }

// pool finds the packet's pool. Loading the port into the register where the
// pool arrives is for nft alone (see the package's documentation).
func (s *schema) pool(d *side) []expr.Any {
	return append(s.frontend(), dport(regValueWord), lookup(d.frontends, regKey, regValue), matchZeroPrefix(regValue))
}

// dport loads the packet's destination port.
func dport(reg uint32) expr.Any {
	return &expr.Payload{DestRegister: reg, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}
}

// matchZeroPrefix compares the first word of a look-up's value, which is always 0, with 0. That
// makes nft list the look-up.
func matchZeroPrefix(reg uint32) expr.Any {
	return &expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: word(0)}
}

// dnat sends the packet to the backend in a random slot below size.
func (s *schema) dnat(d *side, size int) []expr.Any {
	return []expr.Any{
		&expr.Numgen{Register: regSlot, Modulus: uint32(size), Type: unix.NFT_NG_RANDOM},
		lookup(d.endpoints, regValueWord, regKey),
		s.dnatTo(regKey),
	}
}

// dnatTo sends the packet to the backend in registers.
func (s *schema) dnatTo(reg uint32) expr.Any {
	return &expr.NAT{
		Type: expr.NATTypeDestNAT, Family: s.nfproto(), Specified: true,
		RegAddrMin: reg, RegProtoMin: reg + s.addrLen/4,
	}
}

func lookup(set *nfnl.Set, from, to uint32) expr.Any {
	return &expr.Lookup{SetName: set.Name, SourceRegister: from, DestRegister: to, IsDestRegSet: true}
}

// in matches what is in a set.
func in(set *nfnl.Set) []expr.Any {
	return []expr.Any{&expr.Lookup{SetName: set.Name, SourceRegister: regKey}}
}

// inMap matches what is in a map of values, for which the kernel knows no other
// way than to look the value up.
func inMap(set *nfnl.Set) []expr.Any {
	return []expr.Any{lookup(set, regKey, regValue), matchZeroPrefix(regValue)}
}

func (s *schema) load(offset uint32) []expr.Any { return s.loadTo(offset, regKey) }

func (s *schema) loadTo(offset, reg uint32) []expr.Any {
	return []expr.Any{&expr.Payload{
		DestRegister: reg, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: s.addrLen,
	}}
}

func protocol(p byte) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: regKey},
		&expr.Cmp{Op: expr.CmpOpEq, Register: regKey, Data: []byte{p}},
	}
}

func word(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }

// masked keeps the bits of the register that are in mask, and flips those in xor.
func masked(mask, xor uint32) expr.Any {
	return &expr.Bitwise{SourceRegister: regKey, DestRegister: regKey, Len: 4, Mask: word(mask), Xor: word(xor)}
}

func loadMark() expr.Any { return &expr.Meta{Key: expr.MetaKeyMARK, Register: regKey} }

func storeMark() expr.Any {
	return &expr.Meta{Key: expr.MetaKeyMARK, Register: regKey, SourceRegister: true}
}

func setMark(bit uint32) []expr.Any {
	return []expr.Any{loadMark(), masked(^bit, bit), storeMark()}
}

func clearMark(bit uint32) []expr.Any {
	return []expr.Any{loadMark(), masked(^bit, 0), storeMark()}
}

func marked(bit uint32) []expr.Any {
	return []expr.Any{loadMark(), masked(bit, 0), notZero()}
}

func dnatted() []expr.Any {
	return []expr.Any{&expr.Ct{Key: expr.CtKeySTATUS, Register: regKey}, masked(conntrackDNATFlag, 0), notZero()}
}

func notZero() expr.Any { return &expr.Cmp{Op: expr.CmpOpNeq, Register: regKey, Data: word(0)} }

func jump(chain string) []expr.Any {
	return []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: chain}}
}

func goTo(chain string) []expr.Any {
	return []expr.Any{&expr.Verdict{Kind: expr.VerdictGoto, Chain: chain}}
}

func ret() []expr.Any { return []expr.Any{&expr.Verdict{Kind: expr.VerdictReturn}} }

func drop() []expr.Any { return []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}} }
