// SPDX-License-Identifier: Apache-2.0

package flows

import (
	"encoding/binary"
	"iter"
	"net/netip"
	"time"

	"github.com/slipstream-proxy/slipstream/desired"
	"golang.org/x/sys/unix"
)

// msgGet asks for entries (enum cntl_msg_types).
const msgGet = unix.NFNL_SUBSYS_CTNETLINK<<8 | 1

// Attributes of an entry (enum ctattr_type), of its tuples, counters and
// timestamp.
const (
	ctaTupleOrig     = 1
	ctaTupleReply    = 2
	ctaStatus        = 3
	ctaCountersOrig  = 9
	ctaCountersReply = 10
	ctaTimestamp     = 20
	ctaStatusMask    = 26 // Linux 5.15

	ctaTupleIP    = 1
	ctaTupleProto = 2

	ctaIPv4Src = 1
	ctaIPv4Dst = 2
	ctaIPv6Src = 3
	ctaIPv6Dst = 4

	ctaProtoNum     = 1
	ctaProtoSrcPort = 2
	ctaProtoDstPort = 3

	ctaCountersPackets = 1
	ctaCountersBytes   = 2

	ctaTimestampStart = 1
)

// Bits of an entry's status (enum ip_conntrack_status).
const (
	statusOffload   = 1 << 14
	statusHWOffload = 1 << 15
)

// tuple is the protocol and the two ends of packets in one direction.
type tuple struct {
	protocol desired.Protocol
	src, dst netip.AddrPort
}

// parse reads an entry. ok is false for what is not offloaded, and for what has no
// ports.
func (f *Flow) parse(data []byte) (ok bool) {
	const header = 4 // struct nfgenmsg
	if len(data) < header {
		return false
	}
	*f = Flow{}
	var original, reply tuple
	var okOriginal, okReply, offloaded bool
	for typ, b := range attributes(data[header:]) {
		switch typ {
		case ctaTupleOrig:
			original, okOriginal = parseTuple(b)
		case ctaTupleReply:
			reply, okReply = parseTuple(b)
		case ctaStatus:
			status := number(b)
			offloaded, f.Hardware = status&statusOffload != 0, status&statusHWOffload != 0
		case ctaCountersOrig:
			f.Sent = parseCount(b)
		case ctaCountersReply:
			f.Received = parseCount(b)
		case ctaTimestamp:
			for typ, b := range attributes(b) {
				if ns := number(b); typ == ctaTimestampStart && ns != 0 {
					f.Began = time.Unix(0, int64(ns))
				}
			}
		}
	}
	f.Protocol, f.Source, f.Destination, f.Backend = original.protocol, original.src, original.dst, reply.src
	return okOriginal && okReply && offloaded
}

func parseTuple(b []byte) (t tuple, ok bool) {
	var src, dst netip.Addr
	var srcPort, dstPort uint16
	ports := 0
	for typ, b := range attributes(b) {
		for inner, b := range attributes(b) {
			switch {
			case typ == ctaTupleIP && (inner == ctaIPv4Src || inner == ctaIPv6Src):
				src, _ = netip.AddrFromSlice(b)
			case typ == ctaTupleIP && (inner == ctaIPv4Dst || inner == ctaIPv6Dst):
				dst, _ = netip.AddrFromSlice(b)
			case typ == ctaTupleProto && inner == ctaProtoNum:
				t.protocol = desired.Protocol(number(b))
			case typ == ctaTupleProto && inner == ctaProtoSrcPort:
				srcPort = uint16(number(b))
				ports++
			case typ == ctaTupleProto && inner == ctaProtoDstPort:
				dstPort = uint16(number(b))
				ports++
			}
		}
	}
	t.src, t.dst = netip.AddrPortFrom(src, srcPort), netip.AddrPortFrom(dst, dstPort)
	return t, src.IsValid() && dst.IsValid() && ports == 2
}

func parseCount(b []byte) (c Count) {
	for typ, b := range attributes(b) {
		switch typ {
		case ctaCountersPackets:
			c.Packets = number(b)
		case ctaCountersBytes:
			c.Bytes = number(b)
		}
	}
	return c
}

// number is a number in network byte order, of any length up to 8 bytes.
func number(b []byte) (n uint64) {
	if len(b) > 8 {
		return 0
	}
	for _, x := range b {
		n = n<<8 | uint64(x)
	}
	return n
}

// attributes walks netlink attributes in place, as there may be a hundred thousand
// entries. A truncated attribute ends the walk: the kernel sends none.
func attributes(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
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
