// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"net/netip"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/ctnetlink"
	"golang.org/x/sys/unix"
)

// endpoint is one end of a flow: an address, an IPv4 one in its IPv4-mapped form,
// and a port. It is a key of hash tables.
type endpoint struct {
	ip   [16]byte
	port uint16
}

func endpointOf(ap netip.AddrPort) endpoint { return endpoint{ap.Addr().As16(), ap.Port()} }

func backendOf(b desired.Backend) endpoint { return endpoint{b.As16(), b.Port()} }

// family is an address family as netlink has it.
type family uint8

const (
	ipv4 family = unix.AF_INET
	ipv6 family = unix.AF_INET6
)

// desired is the family as package desired has it.
func (f family) desired() desired.Family {
	if f == ipv4 {
		return desired.IPv4
	}
	return desired.IPv6
}

func (e endpoint) family() family {
	if netip.AddrFrom16(e.ip).Is4In6() {
		return ipv4
	}
	return ipv6
}

// wire is an address as the kernel has it.
func (f family) wire(ip [16]byte) []byte {
	if f == ipv4 {
		return ip[12:]
	}
	return ip[:]
}

// parse is the reverse of wire; ok is false when the length is not the family's.
func (f family) parse(b []byte) (ip [16]byte, ok bool) {
	a, ok := netip.AddrFromSlice(b)
	if !ok || a.Is4() != (f == ipv4) {
		return ip, false
	}
	return a.As16(), true
}

// ipAttributes are the family's attributes for addresses in a tuple.
func (f family) ipAttributes() (src, dst uint16) {
	if f == ipv4 {
		return ctnetlink.IPv4Src, ctnetlink.IPv4Dst
	}
	return ctnetlink.IPv6Src, ctnetlink.IPv6Dst
}

func (f family) String() string {
	if f == ipv4 {
		return "IPv4"
	}
	return "IPv6"
}
