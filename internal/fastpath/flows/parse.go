// SPDX-License-Identifier: Apache-2.0

package flows

import (
	"net/netip"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/ctnetlink"
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
	for typ, b := range ctnetlink.Attributes(data[header:]) {
		switch typ {
		case ctnetlink.TupleOrig:
			original, okOriginal = parseTuple(b)
		case ctnetlink.TupleReply:
			reply, okReply = parseTuple(b)
		case ctnetlink.Status:
			status := number(b)
			offloaded, f.Hardware = status&ctnetlink.StatusOffload != 0, status&ctnetlink.StatusHWOffload != 0
		case ctnetlink.CountersOrig:
			f.Sent = parseCount(b)
		case ctnetlink.CountersReply:
			f.Received = parseCount(b)
		case ctnetlink.Timestamp:
			for typ, b := range ctnetlink.Attributes(b) {
				if ns := number(b); typ == ctnetlink.TimestampStart && ns != 0 {
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
	for typ, b := range ctnetlink.Attributes(b) {
		for inner, b := range ctnetlink.Attributes(b) {
			switch {
			case typ == ctnetlink.TupleIP && (inner == ctnetlink.IPv4Src || inner == ctnetlink.IPv6Src):
				src, _ = netip.AddrFromSlice(b)
			case typ == ctnetlink.TupleIP && (inner == ctnetlink.IPv4Dst || inner == ctnetlink.IPv6Dst):
				dst, _ = netip.AddrFromSlice(b)
			case typ == ctnetlink.TupleProto && inner == ctnetlink.ProtoNum:
				t.protocol = desired.Protocol(number(b))
			case typ == ctnetlink.TupleProto && inner == ctnetlink.ProtoSrcPort:
				srcPort = uint16(number(b))
				ports++
			case typ == ctnetlink.TupleProto && inner == ctnetlink.ProtoDstPort:
				dstPort = uint16(number(b))
				ports++
			}
		}
	}
	t.src, t.dst = netip.AddrPortFrom(src, srcPort), netip.AddrPortFrom(dst, dstPort)
	return t, src.IsValid() && dst.IsValid() && ports == 2
}

func parseCount(b []byte) (c Count) {
	for typ, b := range ctnetlink.Attributes(b) {
		switch typ {
		case ctnetlink.CountersPackets:
			c.Packets = number(b)
		case ctnetlink.CountersBytes:
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
