// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"net/netip"
	"testing"

	"github.com/google/nftables/expr"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
)

// FuzzRule: no rule of nf_tables, however odd, ends the process.
func FuzzRule(f *testing.F) {
	p := &Packet{Protocol: 6, Src: netip.MustParseAddrPort("10.0.0.1:0"), Dst: netip.MustParseAddrPort("10.96.0.1:80")}
	for _, e := range [][]expr.Any{
		{&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{10, 96, 0, 1}}},
		{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, &expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: make([]byte, 4), Xor: make([]byte, 4)}},
		{&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 1 << 30, Len: 1 << 31}},
		{&expr.Ct{Key: expr.CtKeySTATE, Register: 1}, &expr.Lookup{SourceRegister: 1, SetName: "s"}, &expr.Verdict{Kind: expr.VerdictDrop}},
	} {
		var b nfnl.Batch
		b.AddRule(nfnl.Table{Family: nfnl.INET, Name: "t"}, "c", "", e)
		const headers, expressions = 20, 4 // struct nlmsghdr and nfgenmsg; NFTA_RULE_EXPRESSIONS
		f.Add(nfnl.Attr(b.Wire()[headers:], expressions))
	}
	f.Fuzz(func(t *testing.T, expressions []byte) {
		w := walker{packet: p}
		w.rule(&nfnl.RuleInfo{Expressions: expressions})
	})
}
