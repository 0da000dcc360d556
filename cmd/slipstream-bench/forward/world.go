// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/nftables"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/test/lab"
	"github.com/vishvananda/netlink"
)

// world is a client, a server behind a Service, and the node or nodes between
// them.
type world struct {
	lab            *lab.Lab
	nodes          []*node
	client, server *lab.Pod
	ipv6           bool
}

// node forwards, and is a Service proxy.
type node struct {
	*lab.Node
	proxy *nftables.Backend
	path  *fastPath
}

func newWorld(o Options) (w *world, err error) {
	w = &world{ipv6: o.Family == FamilyIPv6}
	if w.lab, err = lab.New(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.close())
		}
	}()
	for i := range o.Nodes {
		n, err := w.lab.Node(nodeName(i), w.nodeOptions(i))
		if err != nil {
			return nil, err
		}
		w.nodes = append(w.nodes, &node{Node: n})
	}
	first, last := 0, o.Nodes-1
	if w.client, err = w.nodes[first].Pod("client", w.podAddr(first, 2)); err != nil {
		return nil, err
	}
	if w.server, err = w.nodes[last].Pod("server", w.podAddr(last, 3)); err != nil {
		return nil, err
	}
	for i, n := range w.nodes {
		if err := w.program(n); err != nil {
			return nil, fmt.Errorf("%s: %w", nodeName(i), err)
		}
		n.path = &fastPath{node: n.Node, full: func() (*desired.Change, error) { return w.services(n.Node) }}
	}
	return w, nil
}

// program makes a node the proxy of the Service.
func (w *world) program(n *node) error {
	full, err := w.services(n.Node)
	if err != nil {
		return err
	}
	n.proxy, err = nftables.New(dataplane.Config{
		NetNS:         n.Namespace().FD(),
		MasqueradeBit: dataplane.DefaultMasqueradeBit,
	})
	if err != nil {
		return err
	}
	_, err = n.proxy.Reconcile(context.Background(), full)
	return err
}

// set has all nodes treat connections so from now on. Connections that there
// were are forgotten.
func (w *world) set(s Setting) error {
	for _, n := range w.nodes {
		if err := n.path.set(s.Threshold); err != nil {
			return fmt.Errorf("%s: setting %q: %w", n.Name(), s.Name, err)
		}
		err := n.Do(func() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) })
		if err != nil {
			return fmt.Errorf("%s: flush of connection tracking: %w", n.Name(), err)
		}
	}
	return nil
}

func (w *world) close() error {
	var errs []error
	for _, n := range w.nodes {
		if n.path != nil {
			errs = append(errs, n.path.close())
		}
		if n.proxy != nil {
			errs = append(errs, n.proxy.Close())
		}
	}
	return errors.Join(append(errs, w.lab.Close())...)
}

func nodeName(i int) string { return fmt.Sprintf("node-%d", i+1) }

func (w *world) nodeOptions(i int) lab.NodeOptions {
	if w.ipv6 {
		return lab.NodeOptions{
			Addresses: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom16([16]byte{0: 0xfd, 2: 1, 15: byte(11 + i)}), 64)},
			PodCIDRs:  []netip.Prefix{netip.PrefixFrom(w.podAddr(i, 0), 64)},
		}
	}
	return lab.NodeOptions{
		Addresses: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 168, 100, byte(11 + i)}), 24)},
		PodCIDRs:  []netip.Prefix{netip.PrefixFrom(w.podAddr(i, 0), 24)},
	}
}

// podAddr is an address of a node's pods.
func (w *world) podAddr(node int, host byte) netip.Addr {
	if w.ipv6 {
		return netip.AddrFrom16([16]byte{0: 0xfd, 2: 2, 3: 0x44, 5: byte(1 + node), 15: host})
	}
	return netip.AddrFrom4([4]byte{10, 244, byte(1 + node), host})
}

// podRange is what all pods have their addresses from.
func (w *world) podRange() netip.Prefix {
	if w.ipv6 {
		return netip.PrefixFrom(w.podAddr(-1, 0), 32)
	}
	return netip.PrefixFrom(w.podAddr(-1, 0), 16)
}

// clusterIP is the Service's address.
func (w *world) clusterIP() netip.Addr {
	if w.ipv6 {
		return netip.AddrFrom16([16]byte{0: 0xfd, 3: 0x96, 15: 1})
	}
	return netip.AddrFrom4([4]byte{10, 96, 0, 1})
}
