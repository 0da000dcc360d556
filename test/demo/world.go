// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	"github.com/slipstream-proxy/slipstream/test/lab"
)

// world is the lab with the nodes and pods of the manifests, and a client pod on
// each node.
type world struct {
	lab     *lab.Lab
	nodes   []*lab.Node
	clients []*lab.Pod      // one on each node
	pods    map[string]*pod // by name
}

// pod is a pod with its servers.
type pod struct {
	*lab.Pod
	servers []*lab.Server
}

// drain is what a server does that has been told to end: it takes no new
// connections and goes on with those that it has.
func (p *pod) drain() {
	for _, s := range p.servers {
		s.Drain()
	}
}

// clientHost is the last byte of the client pods' addresses.
const clientHost = 100

// newWorld builds the lab. The error says what the kernel or the user lacks.
func newWorld(c *cast) (w *world, err error) {
	l, err := lab.New()
	switch {
	case errors.Is(err, syscall.EPERM), errors.Is(err, syscall.EACCES):
		return nil, errors.New("needs root, to make network namespaces and to program the kernel in them")
	case errors.Is(err, syscall.EINVAL), errors.Is(err, syscall.ENOSYS):
		return nil, fmt.Errorf("this kernel cannot make network namespaces (CONFIG_NET_NS): %w", err)
	case err != nil:
		return nil, err
	}
	w = &world{lab: l, pods: map[string]*pod{}}
	if err := w.fill(c); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return w, nil
}

func (w *world) close() error { return w.lab.Close() }

func (w *world) fill(c *cast) error {
	for _, n := range c.nodes {
		node, err := w.lab.Node(n.name, lab.NodeOptions{Addresses: onFabric(n.addrs), PodCIDRs: n.pods})
		if err != nil {
			return err
		}
		w.nodes = append(w.nodes, node)
		var addrs []netip.Addr
		for _, p := range n.pods {
			bytes := p.Masked().Addr().AsSlice()
			bytes[len(bytes)-1] = clientHost
			a, _ := netip.AddrFromSlice(bytes)
			addrs = append(addrs, a)
		}
		client, err := node.Pod(fmt.Sprintf("client-%d", len(w.nodes)), addrs...)
		if err != nil {
			return err
		}
		w.clients = append(w.clients, client)
	}
	for _, p := range c.pods {
		if p.later {
			continue
		}
		if err := w.add(p); err != nil {
			return err
		}
	}
	return nil
}

// add adds a pod and starts its servers.
func (w *world) add(p *castPod) error {
	i := slices.IndexFunc(w.nodes, func(n *lab.Node) bool { return n.Name() == p.node })
	if i < 0 {
		return fmt.Errorf("pod %s: there is no Node %q in the examples", p.name, p.node)
	}
	made, err := w.nodes[i].Pod(p.name, p.addrs...)
	if err != nil {
		return err
	}
	pod := &pod{Pod: made}
	w.pods[p.name] = pod
	for proto, port := range p.ports {
		s, err := pod.Serve(proto, netip.AddrPortFrom(netip.IPv6Unspecified(), port))
		if err != nil {
			return err
		}
		pod.servers = append(pod.servers, s)
	}
	return nil
}

// onFabric gives the addresses of nodes the length of the subnet that they share.
func onFabric(addrs []netip.Addr) (all []netip.Prefix) {
	for _, a := range addrs {
		bits := 24
		if a.Is6() {
			bits = 64
		}
		all = append(all, netip.PrefixFrom(a, bits))
	}
	return all
}
