// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"sync"

	"github.com/vishvananda/netlink"
)

// Machine is what nodes, pods and outside hosts have in common: a namespace
// with an eth0, and the means to serve and send traffic in it. A Machine is
// part of a Node, Pod or Host and is not copied.
type Machine struct {
	lab   *Lab
	kind  string // "node", "pod" or "host", for messages
	name  string
	ns    *Namespace
	link  netlink.Link  // eth0
	addrs [2]netip.Addr // by familyIndex

	// Guarded by Lab.build.
	podCIDRs     [2]netip.Prefix // a node's, by familyIndex
	routesToPods bool            // has, or gets, routes to the pods of all nodes

	ports portCounter

	mu     sync.Mutex
	closed bool
	open   map[closer]struct{}
}

// closer is traffic that ends with its machine: a server, a stream or a load.
type closer interface{ Close() error }

// Name returns the name that the machine was given.
func (m *Machine) Name() string { return m.name }

// Namespace returns the machine's network namespace.
func (m *Machine) Namespace() *Namespace { return m.ns }

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

// Do runs fn on a thread in the machine's namespace; see Namespace.Do.
func (m *Machine) Do(fn func() error) error { return m.ns.Do(fn) }

// Start starts a child process in the machine; see Namespace.Start.
func (m *Machine) Start(cmd *exec.Cmd) (*Process, error) {
	p, err := m.ns.Start(cmd)
	if err != nil {
		return nil, m.wrap(err)
	}
	return p, nil
}

// Run runs a program in the machine to its end; see Namespace.Run.
func (m *Machine) Run(ctx context.Context, name string, args ...string) ([]byte, error) {
	out, err := m.ns.Run(ctx, name, args...)
	if err != nil {
		return out, m.wrap(err)
	}
	return out, nil
}

// AddRoute sends packets for prefix through the neighbor via, an address in the
// same family on the machine's eth0 link; a route to the same prefix is
// replaced.
func (m *Machine) AddRoute(prefix netip.Prefix, via netip.Addr) error {
	return m.wrap(m.addRoute(prefix, via))
}

func (m *Machine) addRoute(prefix netip.Prefix, via netip.Addr) error {
	return m.ns.addRoute(netlink.Route{LinkIndex: m.link.Attrs().Index, Dst: ipNet(prefix.Masked()), Gw: via.AsSlice()})
}

// addPodRoutes adds routes to the pod CIDRs of a node, in the families that the two
// machines share.
func (m *Machine) addPodRoutes(node *Machine) error {
	for i, cidr := range node.podCIDRs {
		if !m.routesToPods || !cidr.IsValid() || !m.addrs[i].IsValid() {
			continue
		}
		if err := m.addRoute(cidr, node.addrs[i]); err != nil {
			return err
		}
	}
	return nil
}

// wrap says in which machine the error happened.
func (m *Machine) wrap(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("lab: %s %s: %w", m.kind, m.name, err)
}

// setNamespace returns false if the machine was closed meanwhile.
func (m *Machine) setNamespace(ns *Namespace) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return false
	}
	m.ns = ns
	return true
}

// track remembers traffic to be closed with the machine.
func (m *Machine) track(c closer) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return ErrClosed
	}
	if m.open == nil {
		m.open = map[closer]struct{}{}
	}
	m.open[c] = struct{}{}
	return nil
}

func (m *Machine) untrack(c closer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.open, c)
}

// closeClients ends streams and loads.
func (m *Machine) closeClients() {
	m.closeOpen(func(c closer) bool { _, server := c.(*Server); return !server })
}

func (m *Machine) closeOpen(which func(closer) bool) {
	m.mu.Lock()
	var open []closer
	for c := range m.open {
		if which(c) {
			open = append(open, c)
		}
	}
	m.mu.Unlock()
	for _, c := range open {
		_ = c.Close()
	}
}

// close ends the machine and all that runs in it.
func (m *Machine) close() {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return
	}
	m.closed = true
	ns := m.ns
	m.mu.Unlock()
	m.closeClients()
	m.closeOpen(func(closer) bool { return true })
	if ns != nil {
		_ = ns.Close()
	}
	m.lab.forget(m)
}
