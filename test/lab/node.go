// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
)

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
	if err := checkNode(opts); err != nil {
		return nil, fmt.Errorf("lab: node %s: %w", name, err)
	}
	n := &Node{}
	if err := l.add(&n.Machine, "node", name, routerProfile); err != nil {
		return nil, err
	}
	for _, p := range opts.PodCIDRs {
		n.podCIDRs[familyIndex(p.Addr())] = p.Masked()
	}
	n.routesToPods = true
	if err := n.setUp(opts); err != nil {
		_ = l.remove(&n.Machine)
		return nil, n.wrap(err)
	}
	return n, nil
}

func checkNode(opts NodeOptions) error {
	err := onePerFamily("Addresses", opts.Addresses)
	if err == nil && len(opts.PodCIDRs) > 0 {
		err = onePerFamily("PodCIDRs", opts.PodCIDRs)
	}
	if err != nil {
		return err
	}
	for _, cidr := range opts.PodCIDRs {
		sameFamily := func(a netip.Prefix) bool { return a.Addr().Is4() == cidr.Addr().Is4() }
		if !slices.ContainsFunc(opts.Addresses, sameFamily) {
			return fmt.Errorf("PodCIDRs: %v: the node has no address of that family", cidr)
		}
	}
	return nil
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
	var cidrs []netip.Prefix
	for _, p := range n.podCIDRs {
		if p.IsValid() {
			cidrs = append(cidrs, p)
		}
	}
	return cidrs
}
