// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"encoding/binary"
	"iter"

	"github.com/mdlayher/netlink"
	"github.com/slipstream-proxy/slipstream/desired"
	"golang.org/x/sys/unix"
)

// A tuple is the protocol, source and destination of packets in one direction.

// encodeTuple appends a tuple, or one end of it where the other is nil.
func encodeTuple(a *netlink.AttributeEncoder, typ uint16, f family, p desired.Protocol, src, dst *endpoint) {
	ipSrc, ipDst := f.ipAttributes()
	a.Nested(typ, func(a *netlink.AttributeEncoder) error {
		a.Nested(ctaTupleIP, func(a *netlink.AttributeEncoder) error {
			if src != nil {
				a.Bytes(ipSrc, f.wire(src.ip))
			}
			if dst != nil {
				a.Bytes(ipDst, f.wire(dst.ip))
			}
			return nil
		})
		a.Nested(ctaTupleProto, func(a *netlink.AttributeEncoder) error {
			a.Uint8(ctaProtoNum, uint8(p))
			if src != nil {
				a.Bytes(ctaProtoSrcPort, binary.BigEndian.AppendUint16(nil, src.port))
			}
			if dst != nil {
				a.Bytes(ctaProtoDstPort, binary.BigEndian.AppendUint16(nil, dst.port))
			}
			return nil
		})
		return nil
	})
}

// parseTuple reads one end of a tuple, that of the two attributes.
func parseTuple(b []byte, f family, ipType, portType uint16) (p desired.Protocol, e endpoint, ok bool) {
	var hasIP, hasPort bool
	for typ, payload := range attributes(b) {
		switch typ {
		case ctaTupleIP:
			for typ, payload := range attributes(payload) {
				if typ == ipType {
					e.ip, hasIP = f.parse(payload)
				}
			}
		case ctaTupleProto:
			for typ, payload := range attributes(payload) {
				switch {
				case typ == ctaProtoNum && len(payload) == 1:
					p = desired.Protocol(payload[0])
				case typ == portType && len(payload) == 2:
					e.port, hasPort = binary.BigEndian.Uint16(payload), true
				}
			}
		}
	}
	return p, e, hasIP && hasPort
}

// attributes walks netlink attributes in place, as there may be a hundred
// thousand entries. A truncated attribute ends the walk: the kernel sends none.
func attributes(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(typ uint16, payload []byte) bool) {
		for len(b) >= unix.SizeofNlAttr {
			n := int(binary.NativeEndian.Uint16(b))
			typ := binary.NativeEndian.Uint16(b[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
			if n < unix.SizeofNlAttr || n > len(b) || !yield(typ, b[unix.SizeofNlAttr:n]) {
				return
			}
			b = b[min((n+3)&^3, len(b)):]
		}
	}
}
