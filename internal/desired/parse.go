// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"net/netip"

	netutils "k8s.io/utils/net"
)

// Stored objects may contain notations that the API no longer accepts: leading zeros in IPv4 addresses ("010.0.0.1" is
// 10.0.0.1), and IPv4-mapped IPv6 addresses and ranges. They are parsed as kube-proxy does.

// parseAddr parses an address. An IPv4-mapped address becomes an IPv4 address.
func parseAddr(text string) (netip.Addr, bool) {
	ip, err := netip.ParseAddr(text)
	if err != nil {
		ip, _ = netip.AddrFromSlice(netutils.ParseIPSloppy(text))
	}
	return ip.Unmap().WithZone(""), ip.IsValid()
}

// canBeReached reports whether other hosts can send packets to an address. A frontend
// at any other address would capture the node's own traffic. Linux treats 0.1.2.3 like any other
// address, but sends packets to 255.255.255.255 to all neighbours.
func canBeReached(ip netip.Addr) bool {
	return !ip.IsUnspecified() && !ip.IsLoopback() && !ip.IsMulticast() && ip != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// parsePrefix parses a range of addresses of one family.
func parsePrefix(text string) (netip.Prefix, bool) {
	p, err := netip.ParsePrefix(text)
	if err != nil {
		if _, n, err := netutils.ParseCIDRSloppy(text); err == nil {
			p, _ = netip.ParsePrefix(n.String())
		}
	}
	p = unmap(p)
	return p, p.IsValid()
}

// unmap converts a range of IPv4-mapped addresses to a range of IPv4 addresses. A
// range that also contains other IPv6 addresses becomes invalid.
func unmap(p netip.Prefix) netip.Prefix {
	if !p.Addr().Is4In6() {
		return p.Masked()
	}
	if p.Bits() < 96 {
		return netip.Prefix{}
	}
	return netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96).Masked()
}
