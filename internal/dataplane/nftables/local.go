// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"net/netip"

	"github.com/google/nftables/expr"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"golang.org/x/sys/unix"
)

// This file has the expressions that match a packet's origin.

// fromPod matches traffic from this node's pods, and notFromPod all other traffic. Both
// are nil without a criterion.
func (s *schema) fromPod(l desired.LocalTraffic) []expr.Any { return s.podMatch(l, expr.CmpOpEq) }

func (s *schema) notFromPod(l desired.LocalTraffic) []expr.Any { return s.podMatch(l, expr.CmpOpNeq) }

func (s *schema) podMatch(l desired.LocalTraffic, op expr.CmpOp) []expr.Any {
	switch {
	case l.Iface != "":
		return iifname(l.Iface, l.IsPrefix, op)
	case l.CIDRs[s.family].IsValid():
		return s.addrIn(s.saddr, l.CIDRs[s.family], op)
	}
	return nil
}

// iifname compares the name of the interface on which the packet arrived. It is empty
// for packets that this node sends.
func iifname(name string, isPrefix bool, op expr.CmpOp) []expr.Any {
	data := []byte(name)
	if !isPrefix {
		data = make([]byte, unix.IFNAMSIZ)
		copy(data, name)
	}
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: regKey},
		&expr.Cmp{Op: op, Register: regKey, Data: data},
	}
}

// addrIn compares the address at an offset in the network header with a range.
func (s *schema) addrIn(offset uint32, cidr netip.Prefix, op expr.CmpOp) []expr.Any {
	mask := make([]byte, s.addrLen)
	for i := range cidr.Bits() {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return append(s.load(offset),
		&expr.Bitwise{SourceRegister: regKey, DestRegister: regKey, Len: s.addrLen, Mask: mask, Xor: make([]byte, s.addrLen)},
		&expr.Cmp{Op: op, Register: regKey, Data: cidr.Addr().AsSlice()},
	)
}

// notOurs matches packets that are not for an address of this node. A ClusterIP may be
// assigned to an interface, and serve a port that no Service has.
func notOurs() []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: regKey, ResultADDRTYPE: true, FlagDADDR: true},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: regKey, Data: word(unix.RTN_LOCAL)},
	}
}

// fromNode matches packets with a source address of this node.
func fromNode() []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: regKey, ResultADDRTYPE: true, FlagSADDR: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: regKey, Data: word(unix.RTN_LOCAL)},
	}
}
