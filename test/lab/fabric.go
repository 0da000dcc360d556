// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// fabric is the network between nodes and outside hosts: a bridge in a
// namespace of its own. The bridge's address, the first of the subnet, is the
// nodes' default gateway. It takes packets and forwards none, so that a
// ClusterIP has a route, as on a real node, but no answer without a proxy.
type fabric struct {
	*Namespace
	bridge  netlink.Link
	subnets [2]netip.Prefix // by familyIndex; taken from the first machine
	ports   int
}

func newFabric() (*fabric, error) {
	ns, err := newNamespace("fabric", endProfile)
	if err != nil {
		return nil, err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "fabric"
	// Without a multicast querier, snooping may withhold ND from ports.
	snooping := false
	f := &fabric{Namespace: ns, bridge: &netlink.Bridge{LinkAttrs: attrs, MulticastSnooping: &snooping}}
	err = ns.nl.LinkAdd(f.bridge)
	if err == nil {
		err = ns.repeatSolicitations(attrs.Name)
	}
	// Without a forwarding sysctl IPv4 is silent, but IPv6 answers packets that
	// have no route with an ICMP error.
	for _, a := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		if err == nil {
			err = ns.addRoute(netlink.Route{Dst: ipNet(defaultRoute(a)), Type: unix.RTN_BLACKHOLE})
		}
	}
	if err != nil {
		return nil, errors.Join(ns.wrap(err), ns.Close())
	}
	return f, nil
}

// gateway returns the fabric's own address in the family of a.
func (f *fabric) gateway(a netip.Addr) netip.Addr {
	return f.subnets[familyIndex(a)].Addr().Next()
}

// attach gives the machine an eth0 on the fabric, with these addresses.
func (f *fabric) attach(m *Machine, addrs []netip.Prefix) error {
	var fresh []netip.Prefix
	for _, p := range addrs {
		subnet := f.subnets[familyIndex(p.Addr())]
		switch {
		case !subnet.IsValid():
			f.subnets[familyIndex(p.Addr())] = p.Masked()
			fresh = append(fresh, p)
		case p.Masked() != subnet:
			return fmt.Errorf("address %v: not in the fabric's subnet %v", p, subnet)
		}
		if p.Addr() == f.gateway(p.Addr()) {
			return fmt.Errorf("address %v: is the fabric gateway's", p)
		}
		for _, other := range m.lab.onFabric() {
			if other.Addr(p.Addr().Is6()) == p.Addr() {
				return fmt.Errorf("address %v: is taken by %s", p, other.name)
			}
		}
	}
	f.ports++
	port, eth0, err := f.addVeth(fmt.Sprintf("port%d", f.ports), m.Namespace)
	if err != nil {
		return err
	}
	// The bridge goes up only now: set up without a port, it would start to send
	// when the kernel next looks at carrier changes, up to a second later.
	if err := errors.Join(f.nl.LinkSetMaster(port, f.bridge), f.nl.LinkSetUp(f.bridge)); err != nil {
		return fmt.Errorf("add %s to the bridge: %w", port.Attrs().Name, err)
	}
	for _, p := range fresh {
		gw := netip.PrefixFrom(f.gateway(p.Addr()), p.Bits())
		if err := f.addAddr(f.bridge, gw, netlink.SCOPE_UNIVERSE); err != nil {
			return err
		}
	}
	var gateways []netip.Addr
	for _, p := range addrs {
		if err := m.addAddr(eth0, p, netlink.SCOPE_UNIVERSE); err != nil {
			return err
		}
		m.addrs[familyIndex(p.Addr())] = p.Addr()
		gateways = append(gateways, f.gateway(p.Addr()))
	}
	m.link, m.onFabric = eth0, true
	if err := m.waitUsable(eth0, gateways...); err != nil {
		return err
	}
	return f.waitUsable(f.bridge, m.Addrs()...)
}
