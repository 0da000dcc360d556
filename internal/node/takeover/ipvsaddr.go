// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/slipstream-proxy/slipstream/internal/node/netif"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// kubeIPVS returns kube-proxy's interface of IPVS mode, or nil if it does not exist.
func kubeIPVS() (netlink.Link, error) {
	link, err := netlink.LinkByName(dummy)
	switch {
	case errors.As(err, &netlink.LinkNotFoundError{}):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("looking for kube-proxy's interface %s: %w", dummy, err)
	}
	return link, nil
}

// The routes that replace addresses have a larger metric than the kernel's routes for
// addresses, and are recognized by their protocol. They use the interface lo, because
// kube-ipvs0 is down and IPv6 accepts no routes of such an interface.
const (
	routeMetric   = 1024
	routeProtocol = 83
	loopback      = 1 // the index of lo in each network namespace
)

// anyTable selects routes of all tables, because without CONFIG_IPV6_MULTIPLE_TABLES the
// kernel has one table.
const anyTable = unix.RT_TABLE_UNSPEC

// Prepare changes the source address of new connections from this node to Services. In IPVS
// mode it is the Service's address, because the interface has it. Such connections would end
// with that address, and without IPVS endpoints on other nodes could not reply. Prepare
// replaces each address of the interface by a route in table local. The kernel then still
// accepts packets for the address, and uses an address of the node as the source.
//
// It must be called before Services are programmed. It works in the calling thread's network
// namespace and needs CAP_NET_ADMIN. Without kube-ipvs0 it does nothing. It does not change a
// family of which the node has no other address.
func Prepare() error {
	link, err := kubeIPVS()
	if link == nil {
		return err
	}
	sources := map[bool]net.IP{}
	for _, is4 := range []bool{true, false} {
		if sources[is4], err = ownAddress(link, is4); err != nil {
			return err
		}
	}
	return eachAddress(link, func(a *netlink.Addr) error {
		src := sources[a.IP.To4() != nil]
		if src == nil {
			return nil
		}
		if err := netlink.RouteReplace(localRoute(a.IP, src)); err != nil {
			return fmt.Errorf("making a route of address %s of interface %s: %w", a.IP, dummy, err)
		}
		return removeAddress(link, a)
	})
}

// localRoute returns a route that makes the kernel accept packets to an address.
func localRoute(ip, src net.IP) *netlink.Route {
	r := &netlink.Route{
		LinkIndex: loopback, Dst: netlink.NewIPNet(ip), Src: src,
		Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL, Priority: routeMetric, Protocol: routeProtocol,
	}
	if ip.To4() != nil {
		r.Scope = netlink.SCOPE_HOST
	}
	return r
}

// elsewhere are documentation addresses (RFC 5737, RFC 3849).
var elsewhere = map[bool]net.IP{true: net.ParseIP("192.0.2.1"), false: net.ParseIP("2001:db8::1")}

// ownAddress returns the source address of the node's connections to other machines; without
// a route, any global address of the family; nil if only the given interface has one.
func ownAddress(but netlink.Link, is4 bool) (net.IP, error) {
	if routes, err := netlink.RouteGet(elsewhere[is4]); err == nil && len(routes) > 0 && routes[0].Src != nil {
		return routes[0].Src, nil
	}
	family := netlink.FAMILY_V6
	if is4 {
		family = netlink.FAMILY_V4
	}
	all, err := netif.Complete(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, family) })
	if err != nil {
		return nil, fmt.Errorf("listing the node's addresses: %w", err)
	}
	for _, a := range all {
		if a.LinkIndex != but.Attrs().Index && a.IP.IsGlobalUnicast() {
			return a.IP, nil
		}
	}
	return nil, nil
}

// eachAddress calls do for the addresses of the interface, except those that the kernel itself
// has assigned.
func eachAddress(link netlink.Link, do func(*netlink.Addr) error) error {
	addresses, err := netif.Complete(func() ([]netlink.Addr, error) { return netlink.AddrList(link, netlink.FAMILY_ALL) })
	if err != nil {
		return fmt.Errorf("listing addresses of interface %s: %w", dummy, err)
	}
	var errs []error
	for i := range addresses {
		if a := &addresses[i]; a.IP.To4() != nil || !a.IP.IsLinkLocalUnicast() {
			errs = append(errs, do(a))
		}
	}
	return errors.Join(errs...)
}

func removeAddress(link netlink.Link, a *netlink.Addr) error {
	if err := netlink.AddrDel(link, a); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
		return fmt.Errorf("removing %s from interface %s: %w", a.IP, dummy, err)
	}
	return nil
}

// RemoveRoutes removes the routes to virtual servers that were left to their connections.
func RemoveRoutes() error { return keepRoutes(nil) }

// keepRoutes removes the routes that Prepare has added, except those of virtual servers
// with connections.
func keepRoutes(busy map[netip.Addr]bool) error {
	var errs []error
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := netif.Complete(func() ([]netlink.Route, error) {
			return netlink.RouteListFiltered(family,
				&netlink.Route{Table: anyTable, Protocol: routeProtocol}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
		})
		if err != nil {
			errs = append(errs, fmt.Errorf("listing routes of kube-proxy's IPVS virtual servers: %w", err))
			continue
		}
		for i := range routes {
			r := &routes[i]
			if r.Type != unix.RTN_LOCAL || r.Priority != routeMetric || r.Dst == nil || busy[plain(r.Dst.IP)] {
				continue
			}
			if err := netlink.RouteDel(r); err != nil && !errors.Is(err, unix.ESRCH) {
				errs = append(errs, fmt.Errorf("removing the route to %s: %w", r.Dst, err))
			}
		}
	}
	return errors.Join(errs...)
}

func plain(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}
