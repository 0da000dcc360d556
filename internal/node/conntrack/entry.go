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

// deletion returns a request to delete an entry. Because of its ID, the kernel keeps a later
// entry of the same flow. (A request without a tuple would empty the whole table; Parse
// accepts no such entry.)
func deletion(e *ctnetlink.Entry) (netlink.Message, error) {
	a := netlink.NewAttributeEncoder()
	a.Bytes(nl.CTA_TUPLE_ORIG|unix.NLA_F_NESTED, e.Tuple)
	a.Bytes(nl.CTA_ID, e.ID)
	if e.Zone != nil {
		a.Bytes(nl.CTA_ZONE, e.Zone)
	}
	return ctnetlink.Request(ctnetlink.MsgDelete, netlink.Acknowledge, uint8(familyOf(e.Original.Dst)), a)
}
