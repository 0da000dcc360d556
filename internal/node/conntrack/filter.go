// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"slices"

	"github.com/mdlayher/netlink"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/ctnetlink"
)

// filter is what all flows of a search have in common: the protocol, the original
// destination, and the source of replies. The kernel reports the entries that agree
// in all of it. It compares no ports of SCTP, and none where the protocols differ.
type filter struct {
	protocols   []desired.Protocol
	to, replies common
}

func (f *filter) addProtocol(p desired.Protocol) {
	if !slices.Contains(f.protocols, p) {
		f.protocols = append(f.protocols, p)
	}
}

// common is the address, and the port, that all of several endpoints have.
type common struct {
	endpoint
	known                   bool
	addressDiffers, differs bool // the address, the port
}

func (c *common) add(e endpoint) {
	if !c.known {
		c.endpoint, c.known = e, true
	}
	c.addressDiffers = c.addressDiffers || e.ip != c.ip
	c.differs = c.differs || e.port != c.port
}

// addAll says that any endpoint may be among them.
func (c *common) addAll() { c.addressDiffers, c.differs = true, true }

// flags are bits of CTA_FILTER for what is common.
func (c *common) flags(address, port uint32) (flags uint32) {
	if c.known && !c.addressDiffers {
		flags |= address
	}
	if c.known && !c.differs {
		flags |= port
	}
	return flags
}

// parts are filters that say it together: one, or where that would let everything
// through, one for each protocol.
func (f *filter) parts(able abilities) (all []filter) {
	if original, reply := f.flags(able); original|reply != 0 {
		return []filter{*f}
	}
	for _, p := range f.protocols {
		all = append(all, filter{protocols: []desired.Protocol{p}, to: f.to, replies: f.replies})
	}
	return all
}

// flags are which parts of the two tuples the kernel is to compare. What it does not
// do right is left out.
func (f *filter) flags(able abilities) (original, reply uint32) {
	original = f.to.flags(ctnetlink.FilterIPDst, ctnetlink.FilterDstPort) | ctnetlink.FilterProto
	reply = f.replies.flags(ctnetlink.FilterIPSrc, ctnetlink.FilterSrcPort)
	if reply != 0 {
		reply |= ctnetlink.FilterProto // ports are not taken without
	}
	if len(f.protocols) != 1 {
		const ofProtocol = ctnetlink.FilterProto | ctnetlink.FilterSrcPort | ctnetlink.FilterDstPort
		original &^= ofProtocol
		reply &^= ofProtocol
	}
	if !able.addresses {
		original &^= ctnetlink.FilterIPDst
		reply &^= ctnetlink.FilterIPSrc
	}
	if !able.replies {
		reply = 0
	}
	return original, reply
}

// attributes are the filter as the kernel takes it: two tuples of which it
// compares the parts that are flagged.
func (f *filter) attributes(family family, able abilities) ([]byte, error) {
	original, reply := f.flags(able)
	a := netlink.NewAttributeEncoder()
	encodeTuple(a, ctnetlink.TupleOrig, family, f.protocols[0], nil, &f.to.endpoint)
	encodeTuple(a, ctnetlink.TupleReply, family, f.protocols[0], &f.replies.endpoint, nil)
	a.Nested(ctnetlink.Filter, func(a *netlink.AttributeEncoder) error {
		a.Uint32(ctnetlink.FilterOrigFlags, original) // unlike most of netfilter, in the machine's byte order
		a.Uint32(ctnetlink.FilterReplyFlags, reply)
		return nil
	})
	return a.Encode()
}
