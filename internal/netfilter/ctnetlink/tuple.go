// SPDX-License-Identifier: Apache-2.0

package ctnetlink

import (
	"encoding/binary"
	"net/netip"

	"github.com/mdlayher/netlink"
)

// Tuple is the protocol, source and destination of packets in one direction.
type Tuple struct {
	Protocol uint8
	Src, Dst netip.AddrPort
}

// ParseTuple parses a tuple. ok is false if it lacks an address or a port.
func ParseTuple(b []byte) (t Tuple, ok bool) {
	var src, dst netip.Addr
	var srcPort, dstPort []byte
	for typ, payload := range Attributes(b) {
		for inner, value := range Attributes(payload) {
			switch {
			case typ == TupleIP && (inner == IPv4Src || inner == IPv6Src):
				src, _ = netip.AddrFromSlice(value)
			case typ == TupleIP && (inner == IPv4Dst || inner == IPv6Dst):
				dst, _ = netip.AddrFromSlice(value)
			case typ == TupleProto && inner == ProtoNum && len(value) == 1:
				t.Protocol = value[0]
			case typ == TupleProto && inner == ProtoSrcPort:
				srcPort = value
			case typ == TupleProto && inner == ProtoDstPort:
				dstPort = value
			}
		}
	}
	if !src.IsValid() || !dst.IsValid() || len(srcPort) != 2 || len(dstPort) != 2 {
		return t, false
	}
	t.Src = netip.AddrPortFrom(src, binary.BigEndian.Uint16(srcPort))
	t.Dst = netip.AddrPortFrom(dst, binary.BigEndian.Uint16(dstPort))
	return t, true
}

// Encode appends the tuple as an attribute. It omits an end that is the zero AddrPort.
func (t Tuple) Encode(a *netlink.AttributeEncoder, typ uint16) {
	type end struct {
		netip.AddrPort
		ipv4, ipv6, port uint16
	}
	ends := []end{{t.Src, IPv4Src, IPv6Src, ProtoSrcPort}, {t.Dst, IPv4Dst, IPv6Dst, ProtoDstPort}}
	a.Nested(typ, func(a *netlink.AttributeEncoder) error {
		a.Nested(TupleIP, func(a *netlink.AttributeEncoder) error {
			for _, e := range ends {
				switch addr := e.Addr(); {
				case addr.Is4():
					a.Bytes(e.ipv4, addr.AsSlice())
				case addr.Is6():
					a.Bytes(e.ipv6, addr.AsSlice())
				}
			}
			return nil
		})
		a.Nested(TupleProto, func(a *netlink.AttributeEncoder) error {
			a.Uint8(ProtoNum, t.Protocol)
			for _, e := range ends {
				if e.IsValid() {
					a.Bytes(e.port, binary.BigEndian.AppendUint16(nil, e.Port()))
				}
			}
			return nil
		})
		return nil
	})
}
