// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"encoding/binary"
	"net/netip"

	"github.com/google/nftables/expr"
	"github.com/slipstream-proxy/slipstream/backend"
	"github.com/slipstream-proxy/slipstream/backend/nftables/nfnl"
	"golang.org/x/sys/unix"
)

// Names of chains, beside those that pickChain makes.
const (
	chainPrerouting  = "prerouting"
	chainOutput      = "output"
	chainPostrouting = "postrouting"
	chainServices    = "services"
	chainClusterIP   = "cluster-ip"
	chainReject      = "reject"
	chainDrop        = "drop"
	chainMasquerade  = "masquerade"
)

// chains are all chains but those for picking. The base chains have the
// priorities that nft calls dstnat and srcnat, as kube-proxy's do.
var chains = []nfnl.Chain{
	{Name: chainPrerouting, Hook: &nfnl.Hook{Type: "nat", Num: unix.NF_INET_PRE_ROUTING, Priority: -100}},
	{Name: chainOutput, Hook: &nfnl.Hook{Type: "nat", Num: unix.NF_INET_LOCAL_OUT, Priority: -100}},
	{Name: chainPostrouting, Hook: &nfnl.Hook{Type: "nat", Num: unix.NF_INET_POST_ROUTING, Priority: 100}},
	{Name: chainServices},
	{Name: chainClusterIP},
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
	count int
	err   error
}

func (w *ruleWriter) rule(chain, comment string, parts ...[]expr.Any) {
	var all []expr.Any
	for _, p := range parts {
		all = append(all, p...)
	}
	w.count++
	if err := w.batch.AddRule(w.table, chain, comment, all...); err != nil && w.err == nil {
		w.err = err
	}
}

// static writes the rules that depend on configuration alone.
func (w *ruleWriter) static(c backend.Config) {
	w.rule(chainPrerouting, "", jump(chainServices))
	w.rule(chainOutput, "", jump(chainServices))
	w.rule(chainServices, "", w.load(w.daddr), in(w.clusterIPs), goTo(chainClusterIP))

	mark := uint32(1) << c.MasqueradeBit
	if c.MasqueradeAll {
		w.rule(chainClusterIP, "masquerade all", setMark(mark))
	} else if cidr, ok := w.cidr(c.ClusterCIDRs); ok {
		w.rule(chainClusterIP, "from outside the cluster", w.notFrom(cidr), setMark(mark))
	}
	// While a transaction replaces the size of a pool, a look-up that
	// straddles its commit can find neither the old nor the new element
	// (up to Linux 6.16). The second try finds the new one.
	w.rule(chainClusterIP, "@frontends[ip daddr . meta l4proto . th dport], its @pools, its @picks", w.pool(), w.dispatch())
	w.rule(chainClusterIP, "the same once more: see the documentation", w.pool(), w.dispatch())
	w.rule(chainClusterIP, "not while its size changes", w.frontend(), inMap(w.frontends), drop())
	w.rule(chainClusterIP, "", goTo(chainReject))

	w.rule(chainReject, "", protocol(unix.IPPROTO_TCP), []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}})
	code := uint8(icmpPort)
	if w.table.Family == nfnl.IPv6 {
		code = icmp6Port
	}
	w.rule(chainReject, "", []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: code}})
	w.rule(chainDrop, "no endpoint that traffic policy allows", drop())

	w.rule(chainPostrouting, "", marked(mark), goTo(chainMasquerade))
	w.rule(chainPostrouting, "a pod that reaches itself", dnatted(), w.load(w.saddr), w.loadTo(w.daddr, regKey+w.addrLen/4), in(w.hairpin), goTo(chainMasquerade))
	w.rule(chainMasquerade, "", clearMark(mark))
	w.rule(chainMasquerade, "", []expr.Any{&expr.Masq{FullyRandom: true}})
}

// frontend loads the key of frontends.
func (s *schema) frontend() []expr.Any {
	next := regKey + s.addrLen/4
	return append(s.load(s.daddr),
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: next},
		&expr.Payload{DestRegister: next + 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
	)
}

// pool finds the packet's pool. Loading the port into the register where the
// pool arrives is for nft alone (see the package's documentation).
func (s *schema) pool() []expr.Any {
	return append(s.frontend(),
		&expr.Payload{DestRegister: regValueWord, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		lookup(s.frontends, regKey, regValue), shown(),
	)
}

// shown compares a value's first word with the 0 that it always is, which makes
// nft list the look-up.
func shown() expr.Any { return &expr.Cmp{Op: expr.CmpOpEq, Register: regValue, Data: word(0)} }

// dispatch goes from the pool to the chain that picks one of its backends.
func (s *schema) dispatch() []expr.Any {
	return []expr.Any{
		lookup(s.pools, regValueWord, regValue), shown(),
		lookup(s.picks, regValueWord, unix.NFT_REG_VERDICT),
	}
}

// dnat sends the packet to the backend in a random slot below size.
func (s *schema) dnat(size int) []expr.Any {
	return []expr.Any{
		&expr.Numgen{Register: regSlot, Modulus: uint32(size), Type: unix.NFT_NG_RANDOM},
		lookup(s.endpoints, regValueWord, regKey),
		&expr.NAT{
			Type: expr.NATTypeDestNAT, Family: s.nfproto(), Specified: true,
			RegAddrMin: regKey, RegProtoMin: regKey + s.addrLen/4,
		},
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
	return []expr.Any{lookup(set, regKey, regValue), shown()}
}

func (s *schema) load(offset uint32) []expr.Any { return s.loadTo(offset, regKey) }

func (s *schema) loadTo(offset, reg uint32) []expr.Any {
	return []expr.Any{&expr.Payload{
		DestRegister: reg, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: s.addrLen,
	}}
}

// cidr is the range of the schema's family among some.
func (s *schema) cidr(all []netip.Prefix) (netip.Prefix, bool) {
	for _, p := range all {
		if p.Addr().BitLen() == int(s.addrLen)*8 {
			return p.Masked(), true
		}
	}
	return netip.Prefix{}, false
}

func (s *schema) notFrom(cidr netip.Prefix) []expr.Any {
	mask := make([]byte, s.addrLen)
	for i := range cidr.Bits() {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return append(s.load(s.saddr),
		&expr.Bitwise{SourceRegister: regKey, DestRegister: regKey, Len: s.addrLen, Mask: mask, Xor: make([]byte, s.addrLen)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: regKey, Data: cidr.Addr().AsSlice()},
	)
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

func drop() []expr.Any { return []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}} }
