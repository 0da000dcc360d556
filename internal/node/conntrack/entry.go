// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"encoding/binary"

	"github.com/mdlayher/netlink"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/ctnetlink"
	"golang.org/x/sys/unix"
)

// entry is what matters here of an entry, as the kernel reports it.
type entry struct {
	family      family
	protocol    desired.Protocol
	destination endpoint // where the first packet was sent
	replies     endpoint // where replies come from: the backend, or the destination itself
	translated  bool     // by a rule of NAT

	// What names the entry, in the kernel's encoding.
	original, id, zone []byte
}

// parse reads a message of a dump, whose data it refers to afterwards. ok is
// false for what is no entry with ports.
func (e *entry) parse(data []byte) (ok bool) {
	*e = entry{}
	if len(data) < len(header(0)) {
		return false
	}
	e.family = family(data[0])
	var reply []byte
	for typ, payload := range ctnetlink.Attributes(data[len(header(0)):]) {
		switch typ {
		case ctnetlink.TupleOrig:
			e.original = payload
		case ctnetlink.TupleReply:
			reply = payload
		case ctnetlink.Status:
			e.translated = len(payload) == 4 && binary.BigEndian.Uint32(payload)&ctnetlink.StatusDNAT != 0
		case ctnetlink.ID:
			e.id = payload
		case ctnetlink.Zone:
			e.zone = payload
		}
	}
	src, dst := e.family.ipAttributes()
	var okReply bool
	e.protocol, e.destination, ok = parseTuple(e.original, e.family, dst, ctnetlink.ProtoDstPort)
	_, e.replies, okReply = parseTuple(reply, e.family, src, ctnetlink.ProtoSrcPort)
	return ok && okReply && len(e.id) == 4
}

// deletion is a request to delete the entry. With its ID in it the kernel leaves
// a later entry of the same flow alone. (Without a tuple in it, it would empty
// the whole table; parse accepts no such entry.)
func (e *entry) deletion() (netlink.Message, error) {
	a := netlink.NewAttributeEncoder()
	a.Bytes(ctnetlink.TupleOrig|unix.NLA_F_NESTED, e.original)
	a.Bytes(ctnetlink.ID, e.id)
	if e.zone != nil {
		a.Bytes(ctnetlink.Zone, e.zone)
	}
	return request(ctnetlink.MsgDelete, netlink.Acknowledge, e.family, a)
}

func header(f family) []byte { return ctnetlink.Header(uint8(f)) }

// request is a message to the kernel.
func request(typ netlink.HeaderType, flags netlink.HeaderFlags, f family, a *netlink.AttributeEncoder) (netlink.Message, error) {
	b, err := a.Encode()
	return netlink.Message{
		Header: netlink.Header{Type: typ, Flags: netlink.Request | flags},
		Data:   append(header(f), b...),
	}, err
}
