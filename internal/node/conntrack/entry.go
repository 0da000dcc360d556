// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"net/netip"

	"github.com/mdlayher/netlink"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/ctnetlink"
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
	synSent     bool           // a TCP connection without an answer to its SYN

	// These identify the entry, in the kernel's encoding.
	original, id, zone []byte
}

// parse parses a message of a dump. The entry refers to its data. ok is false unless the
// message is an entry with ports.
func (e *entry) parse(data []byte) (ok bool) {
	const synSent = 1 // enum tcp_conntrack
	var x ctnetlink.Entry
	if !x.Parse(data) {
		return false
	}
	*e = entry{
		family: family(data[0]), protocol: desired.Protocol(x.Original.Protocol), destination: x.Original.Dst, replies: x.Reply.Src,
		translated: x.Status&ctnetlink.StatusDNAT != 0, synSent: x.TCPState == synSent, original: x.Tuple, id: x.ID, zone: x.Zone,
	}
	return x.ID != nil
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
	return ctnetlink.Request(ctnetlink.MsgDelete, netlink.Acknowledge, uint8(e.family), a)
}
