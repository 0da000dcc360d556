// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"net/netip"
	"slices"

	"github.com/mdlayher/netlink"
	"github.com/slipstream-proxy/slipstream/internal/collect"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/ctnetlink"
	"github.com/vishvananda/netlink/nl"
)

// filter describes what all flows of a search have in common: the protocol, the original
// destination, and the source of replies. The kernel reports the entries that match all of
// it. It compares no ports of SCTP, and no ports without the protocol.
type filter struct {
	protocols   []desired.Protocol
	to, replies common
	unanswered  bool // no packet of the other direction was seen
}

func (f *filter) addProtocol(p desired.Protocol) {
	if !slices.Contains(f.protocols, p) {
		f.protocols = append(f.protocols, p)
	}
}

// common is the address and the port that several endpoints share.
type common struct {
	netip.AddrPort                   // the first endpoint; invalid without any
	addressDiffers, portDiffers bool // between the endpoints
}

func (c *common) add(e netip.AddrPort) {
	if !c.IsValid() {
		c.AddrPort = e
	}
	c.addressDiffers = c.addressDiffers || e.Addr() != c.Addr()
	c.portDiffers = c.portDiffers || e.Port() != c.Port()
}

// addAll adds all endpoints.
func (c *common) addAll() { c.addressDiffers, c.portDiffers = true, true }

// flags returns the given bits of CTA_FILTER for the shared fields.
func (c *common) flags(address, port uint32) (flags uint32) {
	if c.IsValid() && !c.addressDiffers {
		flags |= address
	}
	if c.IsValid() && !c.portDiffers {
		flags |= port
	}
	return flags
}

// parts returns equivalent filters: one, or if it would match everything, one for each
// protocol.
func (f *filter) parts(addresses bool) []filter {
	if original, reply := f.flags(addresses); original|reply != 0 {
		return []filter{*f}
	}
	return collect.From(f.protocols, func(p desired.Protocol) filter {
		return filter{protocols: []desired.Protocol{p}, to: f.to, replies: f.replies}
	})
}

// flags returns which parts of the two tuples the kernel is to compare, without those that
// it compares wrong.
func (f *filter) flags(addresses bool) (original, reply uint32) {
	original = f.to.flags(ctnetlink.FilterIPDst, ctnetlink.FilterDstPort) | ctnetlink.FilterProto
	reply = f.replies.flags(ctnetlink.FilterIPSrc, ctnetlink.FilterSrcPort)
	if reply != 0 {
		reply |= ctnetlink.FilterProto // the kernel refuses ports without it
	}
	if len(f.protocols) != 1 {
		const ofProtocol = ctnetlink.FilterProto | ctnetlink.FilterSrcPort | ctnetlink.FilterDstPort
		original &^= ofProtocol
		reply &^= ofProtocol
	}
	if !addresses {
		original &^= ctnetlink.FilterIPDst
		reply &^= ctnetlink.FilterIPSrc
	}
	return original, reply
}

// attributes encodes the filter: two tuples, and flags for the parts to compare.
func (f *filter) attributes(family family, addresses bool) ([]byte, error) {
	original, reply := f.flags(addresses)
	a := netlink.NewAttributeEncoder()
	protocol := uint8(f.protocols[0])
	ctnetlink.Tuple{Protocol: protocol, Dst: f.to.or(family)}.Encode(a, nl.CTA_TUPLE_ORIG)
	ctnetlink.Tuple{Protocol: protocol, Src: f.replies.or(family)}.Encode(a, nl.CTA_TUPLE_REPLY)
	a.Nested(ctnetlink.Filter, func(a *netlink.AttributeEncoder) error {
		a.Uint32(ctnetlink.FilterOrigFlags, original) // in the machine's byte order, unlike most of netfilter
		a.Uint32(ctnetlink.FilterReplyFlags, reply)
		return nil
	})
	if f.unanswered {
		ctnetlink.WithStatus(a, ctnetlink.StatusSeenReply, true)
	}
	return a.Encode()
}

// or returns the shared endpoint, or an unspecified one of the family.
func (c *common) or(f family) netip.AddrPort {
	switch {
	case c.IsValid():
		return c.AddrPort
	case f == ipv4:
		return netip.AddrPortFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.AddrPortFrom(netip.IPv6Unspecified(), 0)
}
