// SPDX-License-Identifier: Apache-2.0

package flows

import (
	"time"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/ctnetlink"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"github.com/vishvananda/netlink/nl"
)

// parse parses an entry. ok is false for connections that are not offloaded or have no ports.
func (f *Flow) parse(data []byte) (ok bool) {
	const header = 4 // struct nfgenmsg
	if len(data) < header {
		return false
	}
	*f = Flow{}
	var original, reply ctnetlink.Tuple
	var okOriginal, okReply, offloaded bool
	for typ, b := range nfnl.Attributes(data[header:]) {
		switch typ {
		case nl.CTA_TUPLE_ORIG:
			original, okOriginal = ctnetlink.ParseTuple(b)
		case nl.CTA_TUPLE_REPLY:
			reply, okReply = ctnetlink.ParseTuple(b)
		case nl.CTA_STATUS:
			status := number(b)
			offloaded, f.Hardware = status&ctnetlink.StatusOffload != 0, status&ctnetlink.StatusHWOffload != 0
		case nl.CTA_COUNTERS_ORIG:
			f.Sent = parseCount(b)
		case nl.CTA_COUNTERS_REPLY:
			f.Received = parseCount(b)
		case nl.CTA_TIMESTAMP:
			for typ, b := range nfnl.Attributes(b) {
				if ns := number(b); typ == nl.CTA_TIMESTAMP_START && ns != 0 {
					f.Began = time.Unix(0, int64(ns))
				}
			}
		}
	}
	f.Protocol, f.Source, f.Destination, f.Backend = desired.Protocol(original.Protocol), original.Src, original.Dst, reply.Src
	return okOriginal && okReply && offloaded
}

func parseCount(b []byte) (c Count) {
	for typ, b := range nfnl.Attributes(b) {
		switch typ {
		case nl.CTA_COUNTERS_PACKETS:
			c.Packets = number(b)
		case nl.CTA_COUNTERS_BYTES:
			c.Bytes = number(b)
		}
	}
	return c
}

// number decodes a number in network byte order, of up to 8 bytes.
func number(b []byte) (n uint64) {
	if len(b) > 8 {
		return 0
	}
	for _, x := range b {
		n = n<<8 | uint64(x)
	}
	return n
}
