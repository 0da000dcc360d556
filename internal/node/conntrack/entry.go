// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"encoding/binary"
	"net/netip"

	"github.com/mdlayher/netlink"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/ctnetlink"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// family is an address family in netlink's numbers.
type family uint8

const (
	ipv4 family = unix.AF_INET
	ipv6 family = unix.AF_INET6
)

func familyOf(a netip.AddrPort) family {
	if a.Addr().Is4() {
		return ipv4
	}
	return ipv6
}

func (f family) desired() desired.Family {
	if f == ipv4 {
		return desired.IPv4
	}
	return desired.IPv6
}

func (f family) String() string { return f.desired().String() }

// entry is the relevant part of an entry.
type entry struct {
	family      family
	protocol    desired.Protocol
	destination netip.AddrPort // of the first packet
	replies     netip.AddrPort // source of replies: the backend, or the destination itself
	translated  bool           // by a NAT rule
	protoinfo   []byte         // the state of TCP, in the kernel's encoding

	// These identify the entry, in the kernel's encoding.
	original, id, zone []byte
}

// parse parses a message of a dump. The entry refers to its data. ok is false unless the
// message is an entry with ports.
func (e *entry) parse(data []byte) (ok bool) {
	*e = entry{}
	if len(data) < len(header(0)) {
		return false
	}
	e.family = family(data[0])
	var reply []byte
	for typ, payload := range nfnl.Attributes(data[len(header(0)):]) {
		switch typ {
		case nl.CTA_TUPLE_ORIG:
			e.original = payload
		case nl.CTA_TUPLE_REPLY:
			reply = payload
		case nl.CTA_STATUS:
			e.translated = len(payload) == 4 && binary.BigEndian.Uint32(payload)&ctnetlink.StatusDNAT != 0
		case nl.CTA_PROTOINFO:
			e.protoinfo = payload
		case nl.CTA_ID:
			e.id = payload
		case nl.CTA_ZONE:
			e.zone = payload
		}
	}
	there, ok := ctnetlink.ParseTuple(e.original)
	back, okBack := ctnetlink.ParseTuple(reply)
	e.protocol, e.destination, e.replies = desired.Protocol(there.Protocol), there.Dst, back.Src
	return ok && okBack && len(e.id) == 4
}

// synSent reports whether the entry is a TCP connection without an answer to its SYN.
func (e *entry) synSent() bool {
	const synSent = 1 // enum tcp_conntrack
	for typ, tcp := range nfnl.Attributes(e.protoinfo) {
		for inner, value := range nfnl.Attributes(tcp) {
			if typ == nl.CTA_PROTOINFO_TCP && inner == nl.CTA_PROTOINFO_TCP_STATE && len(value) == 1 {
				return value[0] == synSent
			}
		}
	}
	return false
}

// deletion returns a request to delete the entry. Because of its ID, the kernel keeps a later
// entry of the same flow. (A request without a tuple would empty the whole table; parse
// accepts no such entry.)
func (e *entry) deletion() (netlink.Message, error) {
	a := netlink.NewAttributeEncoder()
	a.Bytes(nl.CTA_TUPLE_ORIG|unix.NLA_F_NESTED, e.original)
	a.Bytes(nl.CTA_ID, e.id)
	if e.zone != nil {
		a.Bytes(nl.CTA_ZONE, e.zone)
	}
	return request(ctnetlink.MsgDelete, netlink.Acknowledge, e.family, a)
}

func header(f family) []byte { return ctnetlink.Header(uint8(f)) }

// request returns a message to the kernel.
func request(typ netlink.HeaderType, flags netlink.HeaderFlags, f family, a *netlink.AttributeEncoder) (netlink.Message, error) {
	b, err := a.Encode()
	return netlink.Message{
		Header: netlink.Header{Type: typ, Flags: netlink.Request | flags},
		Data:   append(header(f), b...),
	}, err
}
