// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Machine is what nodes, pods and outside hosts have in common: a namespace
// with an eth0, and the means to serve and send traffic in it. A Machine is
// part of a Node, Pod or Host and is not copied.
type Machine struct {
	*Namespace
	lab     *Lab
	name    string
	link    netlink.Link  // eth0
	addrs   [2]netip.Addr // by familyIndex
	profile profile
	ports   atomic.Uint32 // see bindSource

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
	return slices.DeleteFunc(slices.Clone(m.addrs[:]), func(a netip.Addr) bool { return !a.IsValid() })
}

// AddRoute sends packets for prefix through the neighbor via on eth0; a route to the same
// prefix is replaced.
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
	h := &Host{}
	if err := l.add(&h.Machine, "host", name, endProfile, func() error { return l.fabric.attach(&h.Machine, addrs) }); err != nil {
		return nil, err
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

// NodeOptions are a node's addresses.
type NodeOptions struct {
	// Addresses are the node's own on the fabric, with the length of the
	// fabric's subnet: 192.168.100.11/24, fd00:100::11/64. One or two, at most
	// one of each family. All machines on the fabric have the same subnets; the
	// first address of a subnet is the fabric gateway's.
	Addresses []netip.Prefix

	// PodCIDRs are where the node's pods have their addresses: 10.244.1.0/24,
	// fd00:244:1::/64. At most one of each family, of families in which the
	// node has an address. May be empty for a node without pods.
	PodCIDRs []netip.Prefix
}

// Node is a Kubernetes-like node: a router for its pods, on the fabric with the
// other nodes. It forwards both families; rp_filter, redirects and duplicate
// address detection are off; its default route goes to the fabric's gateway.
type Node struct {
	Machine

	veths atomic.Int32
}

// Node adds a node. Nodes have routes to each other's pod CIDRs.
func (l *Lab) Node(name string, opts NodeOptions) (*Node, error) {
	l.build.Lock()
	defer l.build.Unlock()
	n := &Node{}
	n.routesToPods = true
	for _, p := range opts.PodCIDRs {
		n.podCIDRs[familyIndex(p.Addr())] = p.Masked()
	}
	if err := l.add(&n.Machine, "node", name, routerProfile, func() error { return n.setUp(opts) }); err != nil {
		return nil, err
	}
	return n, nil
}

func (n *Node) setUp(opts NodeOptions) error {
	if err := n.lab.fabric.attach(&n.Machine, opts.Addresses); err != nil {
		return err
	}
	for _, a := range n.Addrs() {
		if err := n.addRouteVia(defaultRoute(a), n.lab.fabric.gateway(a)); err != nil {
			return err
		}
	}
	for _, other := range n.lab.onFabric() {
		if other == &n.Machine {
			continue
		}
		if err := errors.Join(n.addPodRoutes(other), other.addPodRoutes(&n.Machine)); err != nil {
			return err
		}
	}
	return nil
}

// PodCIDRs returns the node's pod CIDRs, IPv4 first.
func (n *Node) PodCIDRs() []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(n.podCIDRs[:]), func(p netip.Prefix) bool { return !p.IsValid() })
}

// The pods' default gateways, held by their node on each pod's veth. They are
// of link scope, so they are never taken as a source address for others (nor
// listed by SCTP, which tells its peer all addresses in scope).
var podGateways = [2]netip.Prefix{
	netip.MustParsePrefix("169.254.1.1/32"),
	netip.MustParsePrefix("fe80::1/64"),
}

// Pod is a pod on a node, connected like the ptp CNI plugin does it: a veth
// pair whose inner end, eth0, holds the pod's addresses as /32 and /128, with
// the default route to a gateway address on the outer end.
type Pod struct {
	Machine
	node *Node
	veth netlink.Link // the node's end
}

// Pod adds a pod with one address, or one of each family, from the node's pod
// CIDRs. The node reaches it with its own fabric address as source.
func (n *Node) Pod(name string, addrs ...netip.Addr) (*Pod, error) {
	for _, a := range addrs {
		if !n.podCIDRs[familyIndex(a)].Contains(a) {
			return nil, fmt.Errorf("lab: pod %s: address: %v is not in a pod CIDR of node %s %v", name, a, n.name, n.PodCIDRs())
		}
	}
	p := &Pod{node: n}
	if err := n.lab.add(&p.Machine, "pod", name, endProfile, func() error { return p.setUp(addrs) }); err != nil {
		return nil, errors.Join(err, p.deleteLink())
	}
	return p, nil
}

func (p *Pod) setUp(addrs []netip.Addr) error {
	n := p.node
	veth, eth0, err := n.addVeth(fmt.Sprintf("veth%d", n.veths.Add(1)), p.Namespace)
	if err != nil {
		return err
	}
	p.veth, p.link = veth, eth0
	var gateways []netip.Addr
	for _, a := range addrs {
		i := familyIndex(a)
		gw := podGateways[i]
		gateways = append(gateways, gw.Addr())
		err := errors.Join(
			// On the node: the gateway, and the way to the pod.
			n.addAddr(veth, gw, netlink.SCOPE_LINK),
			n.addRoute(netlink.Route{
				LinkIndex: veth.Attrs().Index, Dst: ipNet(single(a)), Src: n.addrs[i].AsSlice(), Scope: netlink.SCOPE_LINK,
			}),
			// In the pod: its address, and the way out.
			p.addAddr(eth0, single(a), netlink.SCOPE_UNIVERSE),
			p.addRoute(netlink.Route{
				LinkIndex: eth0.Attrs().Index, Dst: ipNet(defaultRoute(a)), Gw: gw.Addr().AsSlice(), Flags: int(netlink.FLAG_ONLINK),
			}),
		)
		if err != nil {
			return err
		}
		p.addrs[i] = a
	}
	if err := p.waitUsable(eth0, gateways...); err != nil {
		return err
	}
	return n.waitUsable(veth, p.Addrs()...)
}

// Node returns the node that the pod runs on.
func (p *Pod) Node() *Node { return p.node }

// NodeLink returns the name of the veth's end on the node.
func (p *Pod) NodeLink() string { return p.veth.Attrs().Name }

// Delete ends all that runs in the pod, and removes its link and its namespace. Its name and
// addresses are free again on return. Calls after the first do nothing.
func (p *Pod) Delete() error {
	return errors.Join(p.lab.remove(&p.Machine), p.deleteLink())
}

// deleteLink deletes a link at once. The kernel would delete it some time after its namespace.
func (p *Pod) deleteLink() error {
	if p.veth == nil || p.node.FD() < 0 {
		return nil
	}
	if err := p.node.nl.LinkDel(p.veth); err != nil && !errors.Is(err, unix.ENODEV) {
		return p.wrap(fmt.Errorf("delete link %s of node %s: %w", p.NodeLink(), p.node.name, err))
	}
	return nil
}
