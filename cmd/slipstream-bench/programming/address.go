// SPDX-License-Identifier: Apache-2.0

package programming

import (
	"encoding/binary"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// family is what of a generated cluster depends on the address family.
type family struct {
	name        corev1.IPFamily
	addressType discoveryv1.AddressType
	services    netip.Prefix // ClusterIPs
	pods        netip.Prefix
	external    netip.Prefix   // load balancers' addresses
	sources     []netip.Prefix // who may connect to them
	node        netip.Addr
}

var (
	ipv4 = family{
		corev1.IPv4Protocol, discoveryv1.AddressTypeIPv4,
		netip.MustParsePrefix("172.16.0.0/12"), netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("198.18.0.0/15"),
		[]netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("203.0.113.0/24")}, netip.MustParseAddr("192.168.0.1"),
	}
	ipv6 = family{
		corev1.IPv6Protocol, discoveryv1.AddressTypeIPv6,
		netip.MustParsePrefix("fd00:10:96::/108"), netip.MustParsePrefix("fd00:10:244::/48"), netip.MustParsePrefix("fd00:198:18::/64"),
		[]netip.Prefix{netip.MustParsePrefix("2001:db8:1::/48"), netip.MustParsePrefix("2001:db8:2::/48")}, netip.MustParseAddr("fd00:192:168::1"),
	}
)

// clusterIP is the address of a Service by its number.
func (f family) clusterIP(service int) netip.Addr { return nth(f.services, service+1) }

// podIPs is how many addresses pods have. When long series of added Services
// have used them up they are used again, as a cluster does.
const podIPs = 1<<24 - 2

// podIP is the address of a pod by its number.
func (f family) podIP(pod int) netip.Addr { return nth(f.pods, pod%podIPs+1) }

// nth is the address at a distance from a range's first.
func nth(p netip.Prefix, n int) netip.Addr {
	if a := p.Addr(); a.Is4() {
		b := a.As4()
		binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+uint32(n))
		return netip.AddrFrom4(b)
	}
	b := p.Addr().As16()
	binary.BigEndian.PutUint32(b[12:], binary.BigEndian.Uint32(b[12:])+uint32(n))
	return netip.AddrFrom16(b)
}
