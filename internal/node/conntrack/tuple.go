// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"encoding/binary"

	"github.com/mdlayher/netlink"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/ctnetlink"
)

// A tuple is the protocol, source and destination of packets in one direction.

// encodeTuple appends a tuple, or one end of it where the other is nil.
func encodeTuple(a *netlink.AttributeEncoder, typ uint16, f family, p desired.Protocol, src, dst *endpoint) {
	ipSrc, ipDst := f.ipAttributes()
	a.Nested(typ, func(a *netlink.AttributeEncoder) error {
		a.Nested(ctnetlink.TupleIP, func(a *netlink.AttributeEncoder) error {
			if src != nil {
				a.Bytes(ipSrc, f.wire(src.ip))
			}
			if dst != nil {
				a.Bytes(ipDst, f.wire(dst.ip))
			}
			return nil
		})
		a.Nested(ctnetlink.TupleProto, func(a *netlink.AttributeEncoder) error {
			a.Uint8(ctnetlink.ProtoNum, uint8(p))
			if src != nil {
				a.Bytes(ctnetlink.ProtoSrcPort, binary.BigEndian.AppendUint16(nil, src.port))
			}
			if dst != nil {
				a.Bytes(ctnetlink.ProtoDstPort, binary.BigEndian.AppendUint16(nil, dst.port))
			}
			return nil
		})
		return nil
	})
}

// parseTuple reads one end of a tuple, that of the two attributes.
func parseTuple(b []byte, f family, ipType, portType uint16) (p desired.Protocol, e endpoint, ok bool) {
	var hasIP, hasPort bool
	for typ, payload := range ctnetlink.Attributes(b) {
		switch typ {
		case ctnetlink.TupleIP:
			for typ, payload := range ctnetlink.Attributes(payload) {
				if typ == ipType {
					e.ip, hasIP = f.parse(payload)
				}
			}
		case ctnetlink.TupleProto:
			for typ, payload := range ctnetlink.Attributes(payload) {
				switch {
				case typ == ctnetlink.ProtoNum && len(payload) == 1:
					p = desired.Protocol(payload[0])
				case typ == portType && len(payload) == 2:
					e.port, hasPort = binary.BigEndian.Uint16(payload), true
				}
			}
		}
	}
	return p, e, hasIP && hasPort
}
