// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
)

// Machine is what nodes, pods and outside hosts have in common: a namespace
// with an eth0, and the means to serve and send traffic in it. A Machine is
// part of a Node, Pod or Host and is not copied.
type Machine struct {
	*Namespace
	lab   *Lab
	name  string
	link  netlink.Link  // eth0
	addrs [2]netip.Addr // by familyIndex
	ports portCounter

	// Guarded by Lab.build.
	onFabric     bool
	podCIDRs     [2]netip.Prefix // a node's, by familyIndex
	routesToPods bool            // has, or gets, routes to the pods of all nodes
}

// Name returns the name that the machine was given.
func (m *Machine) Name() string { return m.name }

// Addr returns the machine's own address of one family (IPv6 if ipv6 is true);
// the invalid netip.Addr if it has none.
func (m *Machine) Addr(ipv6 bool) netip.Addr {
	if ipv6 {
		return m.addrs[1]
	}
	return m.addrs[0]
}

// Addrs returns the machine's own addresses, IPv4 first.
func (m *Machine) Addrs() []netip.Addr {
	var addrs []netip.Addr
	for _, a := range m.addrs {
		if a.IsValid() {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

// AddRoute sends packets for prefix through the neighbor via, an address in the
// same family on the machine's eth0 link; a route to the same prefix is
// replaced.
func (m *Machine) AddRoute(prefix netip.Prefix, via netip.Addr) error {
	return m.wrap(m.addRouteVia(prefix, via))
}

func (m *Machine) addRouteVia(prefix netip.Prefix, via netip.Addr) error {
	return m.addRoute(netlink.Route{LinkIndex: m.link.Attrs().Index, Dst: ipNet(prefix.Masked()), Gw: via.AsSlice()})
}

// addPodRoutes adds routes to the pod CIDRs of a node, in the families that the two
// machines share.
func (m *Machine) addPodRoutes(node *Machine) error {
	for i, cidr := range node.podCIDRs {
		if !m.routesToPods || !cidr.IsValid() || !m.addrs[i].IsValid() {
			continue
		}
		if err := m.addRouteVia(cidr, node.addrs[i]); err != nil {
			return err
		}
	}
	return nil
}

// Host is a machine outside the cluster, on the fabric. It has no default
// route and no routes to pods or ClusterIPs unless it is given some.
type Host struct{ Machine }

// Host adds an outside host with one address, or one of each family, with the
// length of the fabric's subnet; see NodeOptions.Addresses.
func (l *Lab) Host(name string, addrs ...netip.Prefix) (*Host, error) {
	l.build.Lock()
	defer l.build.Unlock()
	if err := onePerFamily("address", addrs); err != nil {
		return nil, fmt.Errorf("lab: host %s: %w", name, err)
	}
	h := &Host{}
	if err := l.add(&h.Machine, "host", name, endProfile); err != nil {
		return nil, err
	}
	if err := l.fabric.attach(&h.Machine, addrs); err != nil {
		_ = l.remove(&h.Machine)
		return nil, h.wrap(err)
	}
	return h, nil
}

// RouteToPods gives the host routes to the pod CIDRs of all nodes, including nodes that are
// added later.
func (h *Host) RouteToPods() error {
	h.lab.build.Lock()
	defer h.lab.build.Unlock()
	h.routesToPods = true
	for _, m := range h.lab.onFabric() {
		if err := h.addPodRoutes(m); err != nil {
			return h.wrap(err)
		}
	}
	return nil
}
