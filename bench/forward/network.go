// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/safchain/ethtool"
	"github.com/slipstream-proxy/slipstream/bench/cluster"
	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/nftables"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/fastpath"
	"github.com/slipstream-proxy/slipstream/internal/feature"
	"github.com/slipstream-proxy/slipstream/internal/proxy"
	"github.com/slipstream-proxy/slipstream/internal/socket"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

type network struct {
	lab            *lab.Lab
	nodes          []*node
	client, server *lab.Pod
	padding        int // Services beside the one that is measured
	addresses
	Setting // that was applied last
}

// node forwards, with a Service proxy and, while it is on, the fast path.
type node struct {
	*lab.Node
	services *desired.Change
	proxy    *nftables.Dataplane

	fastPath *fastpath.Controller // nil while it is off
	stop     context.CancelFunc
	stopped  chan error // what fastPath.Run returned
}

// addresses are a network's, of one family. The formats take the number of a node, from 1,
// and of a pod on it.
type addresses struct {
	ipv6            bool
	node, cidr, pod string
	pods            netip.Prefix // of all nodes
	clusterIP       netip.Addr
}

var addressesOf = map[string]addresses{
	FamilyIPv4: {false, "192.168.100.1%d/24", "10.244.%d.0/24", "10.244.%d.%d", netip.MustParsePrefix("10.244.0.0/16"), netip.MustParseAddr("10.96.0.1")},
	FamilyIPv6: {true, "fd00:1::1%d/64", "fd00:244:%d::/64", "fd00:244:%d::%d", netip.MustParsePrefix("fd00:244::/32"), netip.MustParseAddr("fd00:96::1")},
}

func newNetwork(ctx context.Context, o *Options) (n *network, err error) {
	n = &network{addresses: addressesOf[o.Family], padding: o.Services}
	if n.lab, err = lab.New(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.close())
		}
	}()
	for i := range o.Nodes {
		m, err := n.lab.Node(fmt.Sprintf("node-%d", i+1), lab.NodeOptions{
			Addresses: []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf(n.node, i+1))},
			PodCIDRs:  []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf(n.cidr, i+1))},
		})
		if err != nil {
			return nil, err
		}
		n.nodes = append(n.nodes, &node{Node: m})
	}
	var err2 error
	n.client, err = n.nodes[0].Pod("client", netip.MustParseAddr(fmt.Sprintf(n.pod, 1, 2)))
	n.server, err2 = n.nodes[o.Nodes-1].Pod("server", netip.MustParseAddr(fmt.Sprintf(n.pod, o.Nodes, 3)))
	if err := errors.Join(err, err2); err != nil {
		return nil, err
	}
	for _, m := range n.nodes {
		if err := n.program(ctx, m); err != nil {
			return nil, fmt.Errorf("%s: %w", m.Name(), err)
		}
	}
	return n, nil
}

func (n *network) program(ctx context.Context, m *node) (err error) {
	if m.services, err = n.service(m.Node); err != nil {
		return err
	}
	m.proxy, err = nftables.New(dataplane.Config{NetNS: m.FD(), MasqueradeBit: dataplane.DefaultMasqueradeBit})
	if err != nil {
		return err
	}
	_, err = m.proxy.Reconcile(ctx, m.services)
	return err
}

// set applies a setting to all nodes, and forgets all connections.
func (n *network) set(ctx context.Context, s Setting) error {
	before := n.Setting
	n.Setting = s
	for _, c := range []struct {
		was, is bool
		use     func(context.Context, bool) error
	}{{before.sockets, s.sockets, n.useSockets}, {before.linked, s.linked, n.useLink}, {before.rule, s.rule, n.useRule}} {
		if c.was != c.is {
			if err := c.use(ctx, c.is); err != nil {
				return fmt.Errorf("setting %q: %w", s.Name, err)
			}
		}
	}
	for _, m := range n.nodes {
		if err := m.setFastPath(ctx, s); err != nil {
			return fmt.Errorf("%s: setting %q: %w", m.Name(), s.Name, err)
		}
		err := m.Do(func() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) })
		if err != nil {
			return fmt.Errorf("%s: flush of connection tracking: %w", m.Name(), err)
		}
	}
	return nil
}

// setFastPath restarts the fast path with a setting; without a threshold, it removes it.
func (m *node) setFastPath(ctx context.Context, s Setting) error {
	if err := m.stopFastPath(); err != nil || s.Threshold == 0 {
		return err
	}
	c, err := fastpath.New(fastpath.Config{NetNS: m.FD(), Threshold: s.Threshold, Engine: cmp.Or(s.Engine, fastpath.AutoEngine)})
	if err != nil {
		return err
	}
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	m.fastPath, m.stop, m.stopped = c, cancel, make(chan error, 1)
	_, err = c.Reconcile(ctx, m.services)
	go func() { m.stopped <- c.Run(running) }()
	return err
}

func (m *node) stopFastPath() error {
	if m.fastPath == nil {
		return nil
	}
	c := m.fastPath
	m.fastPath = nil
	m.stop()
	return errors.Join(<-m.stopped, c.Stop())
}

// probe returns the engine of a setting's fast path, if it has one. It fails with
// a feature.Missing if the kernel lacks what the setting needs.
func (n *network) probe(s Setting) (fastpath.Engine, error) {
	if s.sockets {
		b, err := socket.New(socket.Options{NetNS: n.nodes[0].FD()})
		if err != nil {
			return "", feature.Missing{Feature: "sockets", Remedy: "see docs/sockets.md", Err: err}
		}
		return "", b.Close()
	}
	if s.Threshold == 0 {
		return "", nil
	}
	c, err := fastpath.New(fastpath.Config{NetNS: n.nodes[0].FD(), Threshold: 1, Engine: cmp.Or(s.Engine, fastpath.AutoEngine)})
	if err != nil {
		return "", err
	}
	stats, err := c.Stats()
	return stats.Engine, errors.Join(err, c.Stop())
}

func (n *network) close() error {
	var errs []error
	for _, m := range n.nodes {
		errs = append(errs, m.stopFastPath())
		if m.proxy != nil {
			errs = append(errs, m.proxy.Close())
		}
	}
	return errors.Join(append(errs, n.lab.Close())...)
}

type servicePort struct {
	name     string
	protocol corev1.Protocol
	port     uint16
}

var (
	streamPort  = servicePort{"stream", corev1.ProtocolTCP, 5201}
	requestPort = servicePort{"request", corev1.ProtocolTCP, 8080}
	floodPort   = servicePort{"flood", corev1.ProtocolUDP, 5353}
)

func (n *network) frontend(p servicePort) netip.AddrPort {
	if n.direct {
		return n.backend(p)
	}
	if n.rule {
		return netip.AddrPortFrom(n.ruled(), p.port)
	}
	return netip.AddrPortFrom(n.clusterIP, p.port)
}

func (n *network) backend(p servicePort) netip.AddrPort {
	return netip.AddrPortFrom(n.server.Addr(n.ipv6), p.port)
}

func (n *network) service(m *lab.Node) (*desired.Change, error) {
	var ports []corev1.ServicePort
	for _, p := range []servicePort{streamPort, requestPort, floodPort} {
		ports = append(ports, corev1.ServicePort{Name: p.name, Protocol: p.protocol, Port: int32(p.port)})
	}
	svc, slice := cluster.One("server", n.clusterIP, []netip.Addr{n.server.Addr(n.ipv6)}, ports...)
	slice.Endpoints[0].NodeName = ptr.To(n.server.Node().Name())
	state := desired.New(desired.Config{
		NodeName:    m.Name(),
		DetectLocal: desired.DetectLocal{CIDRs: []netip.Prefix{n.pods}},
	})
	state.SetNodeAddresses(m.Addrs())
	state.SetService(svc)
	state.SetEndpointSlice(slice)
	padding := cluster.New(cluster.Config{Families: []cluster.Family{cluster.IPv4}, Services: n.padding, Endpoints: 10})
	for e := range padding.Events() {
		proxy.ApplyEvent(state, e)
	}
	full := state.Full()
	if len(full.Problems) > 0 {
		return nil, full.Problems[0]
	}
	return &full.Change, nil
}

const podLink = "eth0"

func eachLink(m *lab.Machine, f func(*netlink.LinkAttrs)) error {
	return m.Do(func() error {
		all, err := netlink.LinkList()
		if err != nil {
			return fmt.Errorf("%s: list of interfaces: %w", m.Name(), err)
		}
		for _, l := range all {
			if a := l.Attrs(); a.Name != "lo" {
				f(a)
			}
		}
		return nil
	})
}

// arrived is how many packets have arrived on a machine's interfaces. Aggregated packets
// count as one.
func arrived(m *lab.Machine) (n uint64, err error) {
	err = eachLink(m, func(a *netlink.LinkAttrs) { n += a.Statistics.RxPackets })
	return n, err
}

// aggregation are the features of an interface by which many packets of a connection pass
// the stack as one, by the kernel's names.
var aggregation = []string{
	"tx-tcp-segmentation", "tx-tcp6-segmentation", "tx-tcp-ecn-segmentation", "tx-tcp-mangleid-segmentation",
	"tx-generic-segmentation", "tx-udp-segmentation", "tx-gso-list", "rx-gro", "rx-gro-list",
}

// disableAggregation disables GSO, TSO and GRO on the pods' interfaces, until restore.
func (n *network) disableAggregation() (restore func() error, err error) {
	type end struct {
		pod  *lab.Pod
		link string
	}
	// change sets features of a pod's interface, and returns those that are enabled then.
	change := func(at end, features map[string]bool) (enabled map[string]bool, err error) {
		err = at.pod.Do(func() error {
			e, err := ethtool.NewEthtool()
			if err != nil {
				return err
			}
			defer e.Close()
			if err := e.Change(at.link, features); err != nil {
				return err
			}
			enabled, err = e.Features(at.link)
			maps.DeleteFunc(enabled, func(name string, on bool) bool { return !on || !slices.Contains(aggregation, name) })
			return err
		})
		if err != nil {
			err = fmt.Errorf("pod %s: %s: segmentation offloads: %w", at.pod.Name(), at.link, err)
		}
		return enabled, err
	}
	before := map[end]map[string]bool{}
	for _, pod := range []*lab.Pod{n.client, n.server} {
		err := eachLink(&pod.Machine, func(a *netlink.LinkAttrs) { before[end{pod, a.Name}] = nil })
		if err != nil {
			return nil, err
		}
	}
	for at := range before {
		if before[at], err = change(at, nil); err != nil {
			return nil, err
		}
		off := maps.Clone(before[at])
		for name := range off {
			off[name] = false
		}
		still, err := change(at, off)
		if err == nil && len(still) > 0 {
			err = fmt.Errorf("pod %s: %s: %v cannot be disabled", at.pod.Name(), at.link, still)
		}
		if err != nil {
			return nil, err
		}
	}
	return func() (err error) {
		for at, features := range before {
			_, failed := change(at, features)
			err = errors.Join(err, failed)
		}
		return err
	}, nil
}
