// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"net"
	"net/netip"

	netutils "k8s.io/utils/net"
)

// The API has taken, and keeps, some notations that are not used any more: leading
// zeros in IPv4 addresses ("010.0.0.1" is 10.0.0.1), and IPv4 addresses and ranges
// in their IPv6-mapped form. They mean here what they mean to kube-proxy.

// parseAddr reads an address; an IPv4-mapped one becomes an IPv4 one.
func parseAddr(text string) (netip.Addr, bool) {
	ip, err := netip.ParseAddr(text)
	if err != nil {
		ip, _ = netip.AddrFromSlice(netutils.ParseIPSloppy(text))
	}
	return ip.Unmap().WithZone(""), ip.IsValid()
}

// canBeReached reports whether other hosts can send packets to an address. Programming
// others would take traffic away from the node itself.
func canBeReached(ip netip.Addr) bool {
	return !ip.IsUnspecified() && !ip.IsLoopback() && !ip.IsMulticast()
}

// parsePrefix reads a range of addresses of one family.
func parsePrefix(text string) (netip.Prefix, bool) {
	p, err := netip.ParsePrefix(text)
	if err != nil {
		_, n, _ := netutils.ParseCIDRSloppy(text)
		p = prefixOf(n)
	}
	p = unmap(p)
	return p, p.IsValid()
}

func prefixOf(n *net.IPNet) netip.Prefix {
	if n == nil {
		return netip.Prefix{}
	}
	ip, _ := netip.AddrFromSlice(n.IP)
	bits, _ := n.Mask.Size()
	return netip.PrefixFrom(ip, bits)
}

// unmap makes a range of IPv4-mapped addresses one of IPv4 addresses. A larger
// one, which has both, is not valid.
func unmap(p netip.Prefix) netip.Prefix {
	if !p.Addr().Is4In6() {
		return p.Masked()
	}
	if p.Bits() < 96 {
		return netip.Prefix{}
	}
	return netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96).Masked()
}
