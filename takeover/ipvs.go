// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"

	"github.com/moby/ipvs"
	"github.com/sirupsen/logrus"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func init() {
	// moby/ipvs logs that there is no modprobe, in a format of its own. Where we use
	// it the kernel has IPVS already.
	logrus.SetOutput(io.Discard)
}

// removeIPVS removes what IPVS mode has beside its chains, which have to be gone. With
// drain set, virtual servers with established connections stay, as do their addresses;
// draining says that there are some. The interface goes last: it tells that there may be
// anything at all.
func (o Options) removeIPVS(drain bool) (draining bool) {
	link, err := netlink.LinkByName(dummy)
	switch {
	case errors.As(err, &netlink.LinkNotFoundError{}):
		return false
	case err != nil:
		o.failed(fmt.Errorf("looking for kube-proxy's interface %s: %w", dummy, err))
		return false
	case link.Type() != "dummy":
		o.stays(fmt.Errorf("interface %s stays: it is of type %s, kube-proxy's would be of type dummy", dummy, link.Type()))
		return false
	}
	busy, err := o.removeVirtualServers(drain)
	if err == nil {
		err = removeSets()
	}
	if err != nil {
		o.failed(err)
		return false
	}
	if len(busy) > 0 {
		if err := keepAddresses(link, busy); err != nil {
			o.failed(err)
		}
		return true
	}
	if err := netlink.LinkDel(link); err != nil {
		o.failed(fmt.Errorf("removing kube-proxy's interface %s: %w", dummy, err))
		return false
	}
	o.removed("interface " + dummy + " and its ipsets")
	return false
}

// removeVirtualServers removes the virtual servers that are kube-proxy's. With drain set
// those with established connections stay; busy are their addresses.
func (o Options) removeVirtualServers(drain bool) (busy []netip.Addr, err error) {
	if _, err := netlink.GenlFamilyGet("IPVS"); err != nil {
		if errors.Is(err, unix.ENOENT) {
			return nil, nil // the kernel has no IPVS, or not any more
		}
		return nil, fmt.Errorf("looking for kube-proxy's IPVS virtual servers: %w", err)
	}
	handle, err := ipvs.New("")
	if err != nil {
		return nil, fmt.Errorf("looking for kube-proxy's IPVS virtual servers: %w", err)
	}
	defer handle.Close()
	services, err := handle.GetServices()
	if err != nil {
		return nil, fmt.Errorf("listing IPVS virtual servers: %w", err)
	}
	removed := 0
	datagrams := map[netip.AddrPort]bool{}
	for _, s := range services {
		addr, ok := netip.AddrFromSlice(s.Address)
		if !ok || o.excluded(addr.Unmap()) { // without an address: by firewall mark, never kube-proxy's
			continue
		}
		addr = addr.Unmap()
		server := netip.AddrPortFrom(addr, s.Port)
		if drain {
			active, err := established(handle, s)
			if err != nil {
				return nil, fmt.Errorf("listing destinations of IPVS virtual server %s: %w", server, err)
			}
			if active > 0 {
				busy = append(busy, addr)
				continue
			}
		}
		if err := handle.DelService(s); err != nil && !errors.Is(err, unix.ESRCH) {
			return nil, fmt.Errorf("removing IPVS virtual server %s: %w", server, err)
		}
		removed++
		if s.Protocol == unix.IPPROTO_UDP {
			datagrams[server] = true
		}
	}
	if removed > 0 {
		o.removed(fmt.Sprintf("%d IPVS virtual servers", removed))
	}
	return busy, forgetFlows(datagrams)
}

// flowsTo selects conntrack's entries of UDP flows to virtual servers.
type flowsTo map[netip.AddrPort]bool

func (to flowsTo) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	addr, _ := netip.AddrFromSlice(flow.Forward.DstIP)
	return flow.Forward.Protocol == unix.IPPROTO_UDP && to[netip.AddrPortFrom(addr.Unmap(), flow.Forward.DstPort)]
}

// forgetFlows has conntrack forget UDP flows that virtual servers carried. Otherwise
// clients that keep sending would not become new ones, for which our rules are.
func forgetFlows(to flowsTo) error {
	if len(to) == 0 {
		return nil
	}
	var errs []error
	for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		if _, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, family, to); err != nil {
			errs = append(errs, fmt.Errorf("deleting conntrack's entries of UDP flows to IPVS virtual servers: %w", err))
		}
	}
	return errors.Join(errs...)
}

// established is how many established connections a virtual server has.
func established(handle *ipvs.Handle, s *ipvs.Service) (n int, err error) {
	destinations, err := handle.GetDestinations(s)
	for _, d := range destinations {
		n += d.ActiveConnections
	}
	return n, err
}

func (o Options) excluded(addr netip.Addr) bool {
	return slices.ContainsFunc(o.ExcludeCIDRs, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// keepAddresses takes all addresses from the interface but those of virtual servers with
// connections: their packets have to come in as this node's.
func keepAddresses(link netlink.Link, busy []netip.Addr) error {
	addresses, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("listing addresses of interface %s: %w", dummy, err)
	}
	var errs []error
	for i := range addresses {
		a := &addresses[i]
		if ip, _ := netip.AddrFromSlice(a.IP); slices.Contains(busy, ip.Unmap()) || isLinkLocal6(a.IP) {
			continue
		}
		if err := netlink.AddrDel(link, a); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			errs = append(errs, fmt.Errorf("removing %s from interface %s: %w", a.IP, dummy, err))
		}
	}
	return errors.Join(errs...)
}

// isLinkLocal6 says whether the kernel itself has given the interface an address.
func isLinkLocal6(ip net.IP) bool { return ip.To4() == nil && ip.IsLinkLocalUnicast() }
