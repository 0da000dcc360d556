// SPDX-License-Identifier: Apache-2.0

package fastpath

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/google/nftables/expr"
	"github.com/slipstream-proxy/slipstream/internal/fastpath/ebpf"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
)

// regKey is the register where keys start (NFT_REG32_00).
const regKey = 8

// rules writes all rules. Most packets belong to short connections and leave at the first
// rule.
func (ctl *Controller) rules(b *nfnl.Batch) {
	c := &ctl.config
	rule := writeTo(b)
	c.Exclude.byPacket(rule)
	rule(chainForward, "too short yet, both directions counted", packetsUpTo(c.Threshold), ret())
	rule(chainForward, "an ICMP error is not part of the connection", stateIs(notOfConnection), ret())
	ctl.selected(rule, chainForward, chainOffload)
	c.Exclude.byAddress(rule)
	rule(chainOffload, "IPVS translates without conntrack", directionIs(int(nfnl.Reply)), withoutDNAT(), ret())
	rule(chainOffload, "", meta(expr.MetaKeyIIFNAME), notIn(interfaces), ret())
	rule(chainOffload, "", meta(expr.MetaKeyOIFNAME), notIn(interfaces), ret())
	rule(chainOffload, "", meta(expr.MetaKeyNFPROTO), in(heldFamilies), ret())
	for i := range families {
		f := &families[i]
		rule(chainOffload, "", f.toFrontend(f.heldFrontends), ret())
		for _, direction := range []uint8{nfnl.Original, nfnl.Reply} {
			rule(chainOffload, "", []expr.Any{nfnl.CtSource.Load(f.Family, direction, regKey)}, in(f.heldAddresses), ret())
		}
	}
	rule(chainOffload, "", verdict(expr.VerdictJump, chainUnjudged))
	ctl.engine.offload(rule)
	ctl.writeJudges(b)
}

// selected has packets of connections that the scope and the frontends select go to another chain.
func (c *Controller) selected(rule writeRule, chain, to string) {
	listed := goTo(to)
	if c.config.Scope == All {
		listed = ret()
	}
	for i := range families {
		f := &families[i]
		rule(chain, "", f.toFrontend(f.frontends), listed)
		rule(chain, "", f.toNodePort(), listed)
	}
	if c.config.Scope == All {
		rule(chain, "", goTo(to))
	}
}

// nowhereBack matches packets whose sender is not routed by the interface at which they have arrived,
// as with asymmetric routing, or while routes change. For the other direction the flowtable would look up
// the route by that interface. Without one, IPv4 assumes that the sender is on its link, where no
// neighbour answers (ip_route_output_key_hash_rcu), and the connection would be cut off.
func nowhereBack() []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: regKey, ResultOIF: true, FlagSADDR: true, FlagIIF: true, FlagMARK: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: regKey, Data: word(0)},
	}
}

// classOfPriority are the bits of a packet's priority that tell a class of a queueing discipline.
const classOfPriority = 0xffff << 16

// request asks the engine EBPF to offload the connection, by a class that no packet has. Its program at the egress takes
// it away.
func request() []expr.Any {
	return append(meta(expr.MetaKeyPRIORITY),
		&expr.Bitwise{SourceRegister: regKey, DestRegister: regKey, Len: 4, Mask: word(classOfPriority ^ math.MaxUint32), Xor: word(ebpf.Asked)},
		&expr.Meta{Key: expr.MetaKeyPRIORITY, SourceRegister: true, Register: regKey},
	)
}

// packetsUpTo matches connections of which conntrack has counted at most n packets,
// including this one.
func packetsUpTo(n uint32) []expr.Any {
	const size = 8
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeyPKTS, Register: regKey},
		// The kernel compares bytes, so the order is the network's.
		&expr.Byteorder{SourceRegister: regKey, DestRegister: regKey, Op: expr.ByteorderHton, Len: size, Size: size},
		&expr.Cmp{Op: expr.CmpOpLte, Register: regKey, Data: binary.BigEndian.AppendUint64(nil, uint64(n))},
	}
}

// offload adds the connection to the flowtable.
func offload() []expr.Any {
	return append([]expr.Any{&expr.FlowOffload{Name: flowtableName}}, nfnl.CountIn(counterOffloaded)...)
}

// withoutDNAT matches connections of which no NAT rule has translated the destination. Of those
// that IPVS translates, only the replies pass the hook forward. The kernel would offload them
// untranslated.
func withoutDNAT() []expr.Any {
	const dstNAT = 1 << 5 // IPS_DST_NAT
	return masked(ct(expr.CtKeySTATUS), word(dstNAT), expr.CmpOpEq, word(0))
}

// notOfConnection are the states of packets that do not cause an offload. An ICMP error has
// the conntrack entry of the connection that it refers to, but may take another route.
const notOfConnection = expr.CtStateBitINVALID | expr.CtStateBitRELATED | expr.CtStateBitUNTRACKED

func stateIs(any uint32) []expr.Any {
	return masked(ct(expr.CtKeySTATE), word(any), expr.CmpOpNeq, word(0))
}

func word(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }

// toFrontend matches connections with an original destination in a set.
func (f *family) toFrontend(set *nfnl.Set) []expr.Any {
	return slices.Concat(nfnl.AsTCP(), nfnl.OriginalDestination(f.Family, regKey), in(set))
}

// toNodePort matches connections to NodePorts in the sets. With the scope Services that includes
// those to a frontend that overrides one (desired.FrontendKey), even if it is not in its set.
func (f *family) toNodePort() []expr.Any {
	port := &expr.Lookup{SetName: f.nodePorts.Name, SourceRegister: regKey + f.AddrLen()/4}
	return append(f.toFrontend(f.nodeAddresses), port)
}

func meta(key expr.MetaKey) []expr.Any { return []expr.Any{&expr.Meta{Key: key, Register: regKey}} }

func ct(key expr.CtKey) []expr.Any { return []expr.Any{&expr.Ct{Key: key, Register: regKey}} }

// masked compares those bits of what was loaded that a mask has.
func masked(load []expr.Any, mask []byte, op expr.CmpOp, value []byte) []expr.Any {
	n := uint32(len(mask))
	return append(load,
		&expr.Bitwise{SourceRegister: regKey, DestRegister: regKey, Len: n, Mask: mask, Xor: make([]byte, n)},
		&expr.Cmp{Op: op, Register: regKey, Data: value})
}

func in(set *nfnl.Set) []expr.Any {
	return []expr.Any{&expr.Lookup{SetName: set.Name, SourceRegister: regKey}}
}

func notIn(set *nfnl.Set) []expr.Any {
	return []expr.Any{&expr.Lookup{SetName: set.Name, SourceRegister: regKey, Invert: true}}
}

func verdict(kind expr.VerdictKind, chain string) []expr.Any {
	return []expr.Any{&expr.Verdict{Kind: kind, Chain: chain}}
}

func ret() []expr.Any              { return verdict(expr.VerdictReturn, "") }
func goTo(chain string) []expr.Any { return verdict(expr.VerdictGoto, chain) }
