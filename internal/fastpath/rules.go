// SPDX-License-Identifier: Apache-2.0

package fastpath

import (
	"encoding/binary"

	"github.com/google/nftables/expr"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
)

// regKey is the register where keys start (NFT_REG32_00).
const regKey = 8

// ruleWriter adds rules to a batch and records the first error.
type ruleWriter struct {
	batch *nfnl.Batch
	err   error
}

func (w *ruleWriter) rule(chain, comment string, parts ...[]expr.Any) {
	var all []expr.Any
	for _, p := range parts {
		all = append(all, p...)
	}
	if err := w.batch.AddRule(table, chain, comment, all...); err != nil && w.err == nil {
		w.err = err
	}
}

// rules writes all rules. Most packets belong to short connections and leave at the first
// rule.
func (w *ruleWriter) rules(threshold uint32, scope Scope) {
	w.rule(chainForward, "too short yet, both directions counted", packetsUpTo(threshold), ret())
	w.rule(chainForward, "an ICMP error is no packet of the connection", stateIs(notOfConnection), ret())
	if scope == All {
		w.rule(chainForward, "", goTo(chainOffload))
	} else {
		for i := range families {
			f := &families[i]
			w.rule(chainForward, "", f.originalDestination(), in(f.frontends), goTo(chainOffload))
		}
	}
	set := interfaces(false)
	w.rule(chainOffload, "", meta(expr.MetaKeyIIFNAME), notIn(set), ret())
	w.rule(chainOffload, "", meta(expr.MetaKeyOIFNAME), notIn(set), ret())
	w.rule(chainOffload, "", meta(expr.MetaKeyNFPROTO), in(heldFamilies), ret())
	for i := range families {
		f := &families[i]
		w.rule(chainOffload, "", f.originalDestination(), in(f.heldFrontends), ret())
		for _, direction := range []uint8{nfnl.Original, nfnl.Reply} {
			w.rule(chainOffload, "", []expr.Any{nfnl.CtSource(f.Family, direction, regKey)}, in(f.heldAddresses), ret())
		}
	}
	w.rule(chainOffload, "always; a copy that nft has loaded never matches", nfnl.UnlessLoaded(), []expr.Any{&expr.FlowOffload{Name: flowtableName}, nfnl.CountIn(counterOffloaded)})
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

// notOfConnection are the states of packets that do not cause an offload. An ICMP error has
// the conntrack entry of the connection that it refers to, but may take another route.
const notOfConnection = expr.CtStateBitINVALID | expr.CtStateBitRELATED | expr.CtStateBitUNTRACKED

func stateIs(any uint32) []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: regKey},
		&expr.Bitwise{SourceRegister: regKey, DestRegister: regKey, Len: 4, Mask: word(any), Xor: word(0)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: regKey, Data: word(0)},
	}
}

func word(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }

// originalDestination loads the original destination of the connection, as a key of
// frontends. The rule does not match packets of the other family.
func (f *family) originalDestination() []expr.Any {
	next := regKey + f.addrLen/4
	return append(nfnl.AsTCP(),
		nfnl.CtOriginalDaddr(f.Family, regKey),
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: next},
		nfnl.CtOriginalDport(next+1),
	)
}

func meta(key expr.MetaKey) []expr.Any { return []expr.Any{&expr.Meta{Key: key, Register: regKey}} }

func in(set *nfnl.Set) []expr.Any {
	return []expr.Any{&expr.Lookup{SetName: set.Name, SourceRegister: regKey}}
}

func notIn(set *nfnl.Set) []expr.Any {
	return []expr.Any{&expr.Lookup{SetName: set.Name, SourceRegister: regKey, Invert: true}}
}

func ret() []expr.Any { return []expr.Any{&expr.Verdict{Kind: expr.VerdictReturn}} }

func goTo(chain string) []expr.Any {
	return []expr.Any{&expr.Verdict{Kind: expr.VerdictGoto, Chain: chain}}
}
