// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/safchain/ethtool"
	"github.com/slipstream-proxy/slipstream/bench/cluster"
	"github.com/slipstream-proxy/slipstream/internal/collect"
	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/nftables"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/fastpath"
	"github.com/slipstream-proxy/slipstream/internal/feature"
	"github.com/slipstream-proxy/slipstream/internal/proxy"
	"github.com/slipstream-proxy/slipstream/internal/socket"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

type network struct {
	lab            *lab.Lab
	node           *node
	client, server *lab.Pod
	padding        int // Services beside the one that is measured
	Setting            // that was applied last
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

var (
	pods      = netip.MustParsePrefix("10.244.1.0/24")
	clusterIP = netip.MustParseAddr("10.96.0.1")
)

func newNetwork(ctx context.Context, o *Options) (n *network, err error) {
	n = &network{padding: o.Services}
	if n.lab, err = lab.New(); err != nil {
		return nil, err
	}
	defer lab.OnError(&err, n.close)
	n.node = &node{}
	n.node.Node, err = n.lab.Node("node", lab.NodeOptions{
		Addresses: []netip.Prefix{netip.MustParsePrefix("192.168.100.11/24")}, PodCIDRs: []netip.Prefix{pods},
	})
	if err != nil {
		return nil, err
	}
	var err2 error
	n.client, err = n.node.Pod("client", lab.Nth(pods, 2))
	n.server, err2 = n.node.Pod("server", lab.Nth(pods, 3))
	if err := errors.Join(err, err2); err != nil {
		return nil, err
	}
	if n.node.services, err = n.service(); err != nil {
		return nil, err
	}
	if n.node.proxy, err = nftables.New(dataplane.Config{NetNS: n.node.FD(), MasqueradeBit: dataplane.DefaultMasqueradeBit}); err != nil {
		return nil, err
	}
	_, err = n.node.proxy.Reconcile(ctx, n.node.services)
	return n, err
}

// set applies a setting to the node, and forgets all connections.
func (n *network) set(ctx context.Context, s Setting) error {
	before := n.Setting
	n.Setting = s
	for _, c := range []struct {
		was, is bool
		use     func(context.Context, bool) error
	}{{before.sockets, s.sockets, n.useSockets}, {before.linked, s.linked, n.useLink}} {
		if c.was != c.is {
			if err := c.use(ctx, c.is); err != nil {
				return fmt.Errorf("setting %q: %w", s.Name, err)
			}
		}
	}
	if err := n.node.setFastPath(ctx, s); err != nil {
		return fmt.Errorf("setting %q: %w", s.Name, err)
	}
	err := n.node.Do(func() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) })
	if err != nil {
		return fmt.Errorf("flush of connection tracking: %w", err)
	}
	return nil
}

// setFastPath restarts the fast path with a setting; without a threshold, it removes it.
func (m *node) setFastPath(ctx context.Context, s Setting) error {
	if err := m.stopFastPath(); err != nil || s.Threshold == 0 {
		return err
	}
	c, err := fastpath.New(fastpath.Config{NetNS: m.FD(), Threshold: s.Threshold, Engine: cmp.Or(s.Engine, fastpath.AutoEngine), GRO: s.gro})
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
		b, err := socket.New(socket.Options{NetNS: n.node.FD()})
		if err != nil {
			return "", feature.Missing{Feature: "sockets", Remedy: "see docs/sockets.md", Err: err}
		}
		return "", b.Close()
	}
	if s.Threshold == 0 {
		return "", nil
	}
	c, err := fastpath.New(fastpath.Config{NetNS: n.node.FD(), Threshold: 1, Engine: cmp.Or(s.Engine, fastpath.AutoEngine)})
	if err != nil {
		return "", err
	}
	stats, err := c.Stats()
	return stats.Engine, errors.Join(err, c.Stop())
}

func (n *network) close() error {
	var err error
	if n.node != nil {
		err = n.node.stopFastPath()
		if n.node.proxy != nil {
			err = errors.Join(err, n.node.proxy.Close())
		}
	}
	return errors.Join(err, n.lab.Close())
}

// firewall adds rules to the node's forward hook, as a firewall has them.
func (n *network) firewall(ctx context.Context) error {
	const table = `table inet bench-firewall {
	chain forward {
		type filter hook forward priority filter; policy accept;
		ct state invalid counter drop
		meta l4proto sctp counter drop
		ct state established,related counter accept
	}
}
`
	_, err := n.node.Run(ctx, "nft", table)
	return err
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
	return netip.AddrPortFrom(clusterIP, p.port)
}

func (n *network) backend(p servicePort) netip.AddrPort {
	return netip.AddrPortFrom(n.server.Addr(false), p.port)
}

func (n *network) service() (*desired.Change, error) {
	ports := collect.From([]servicePort{streamPort, requestPort, floodPort}, func(p servicePort) corev1.ServicePort {
		return corev1.ServicePort{Name: p.name, Protocol: p.protocol, Port: int32(p.port)}
	})
	svc, slice := cluster.One("server", clusterIP, []netip.Addr{n.server.Addr(false)}, ports...)
	slice.Endpoints[0].NodeName = new(n.node.Name())
	state := desired.New(desired.Config{
		NodeName:    n.node.Name(),
		DetectLocal: desired.DetectLocal{CIDRs: []netip.Prefix{pods}},
	})
	state.SetNodeAddresses(n.node.Addrs())
	state.SetService(svc)
	state.SetEndpointSlice(slice)
	padding := cluster.New(cluster.Config{Services: n.padding, Endpoints: 10})
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

// disableAggregation disables GSO, TSO and GRO on the pods' interfaces.
func (n *network) disableAggregation() error {
	for _, pod := range []*lab.Pod{n.client, n.server} {
		var links []string
		if err := eachLink(&pod.Machine, func(a *netlink.LinkAttrs) { links = append(links, a.Name) }); err != nil {
			return err
		}
		for _, link := range links {
			if err := pod.Do(func() error { return disableAggregation(link) }); err != nil {
				return fmt.Errorf("pod %s: %s: segmentation offloads: %w", pod.Name(), link, err)
			}
		}
	}
	return nil
}

func disableAggregation(link string) error {
	e, err := ethtool.NewEthtool()
	if err != nil {
		return err
	}
	defer e.Close()
	enabled := func() map[string]bool {
		var all map[string]bool
		all, err = e.Features(link)
		maps.DeleteFunc(all, func(name string, on bool) bool { return !on || !slices.Contains(aggregation, name) })
		return all
	}
	off := enabled()
	for name := range off {
		off[name] = false
	}
	if err = errors.Join(err, e.Change(link, off)); err != nil {
		return err
	}
	if still := enabled(); len(still) > 0 {
		return fmt.Errorf("%v cannot be disabled", slices.Sorted(maps.Keys(still)))
	}
	return err
}

// useSockets attaches the programs of sockets for the client's pod, or removes them.
func (n *network) useSockets(ctx context.Context, use bool) (err error) {
	m := n.node
	if !use {
		const pause = time.Second // in which the kernel frees the maps
		defer time.Sleep(pause)
		return socket.Remove(m.FD())
	}
	dir, err := os.MkdirTemp("", "netns")
	if err != nil {
		return err
	}
	path := filepath.Join(dir, "cni-00000000-0000-0000-0000-000000000000")
	defer func() {
		_ = unix.Unmount(path, unix.MNT_DETACH)
		err = errors.Join(err, os.RemoveAll(dir))
	}()
	if err = os.WriteFile(path, nil, 0o600); err != nil {
		return err
	}
	if err = unix.Mount(fmt.Sprintf("/proc/self/fd/%d", n.client.FD()), path, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	b, err := socket.New(socket.Options{NetNS: m.FD(), Pods: dir})
	if err != nil {
		return err
	}
	_, err = b.Reconcile(ctx, m.services)
	return errors.Join(err, b.Close()) // the programs stay attached
}

const directLink = "direct"

// addLink joins the pods by a link, which no route uses yet.
func (n *network) addLink() error {
	veth := netlink.NewVeth(netlink.LinkAttrs{Name: directLink})
	veth.PeerName, veth.PeerNamespace = directLink, netlink.NsFd(n.server.FD())
	if err := n.client.Netlink().LinkAdd(veth); err != nil {
		return fmt.Errorf("link between the pods: %w", err)
	}
	ends := map[*lab.Pod]netlink.Link{}
	for _, pod := range []*lab.Pod{n.client, n.server} {
		link, err := pod.Netlink().LinkByName(directLink)
		if err != nil {
			return fmt.Errorf("pod %s: %s: %w", pod.Name(), directLink, err)
		}
		if err := pod.Netlink().LinkSetUp(link); err != nil {
			return fmt.Errorf("pod %s: %s: %w", pod.Name(), directLink, err)
		}
		ends[pod] = link
	}
	for pod, other := range map[*lab.Pod]*lab.Pod{n.client: n.server, n.server: n.client} {
		err := pod.Netlink().NeighSet(&netlink.Neigh{
			LinkIndex: ends[pod].Attrs().Index, State: netlink.NUD_PERMANENT,
			IP: other.Addr(false).AsSlice(), HardwareAddr: ends[other].Attrs().HardwareAddr,
		})
		if err != nil {
			return fmt.Errorf("pod %s: neighbour %s: %w", pod.Name(), other.Name(), err)
		}
	}
	return nil
}

// useLink routes the pods' packets to each other over their link, or as before.
func (n *network) useLink(_ context.Context, use bool) (err error) {
	for pod, other := range map[*lab.Pod]*lab.Pod{n.client: n.server, n.server: n.client} {
		link, failed := pod.Netlink().LinkByName(directLink)
		if failed == nil {
			route := netlink.Route{
				LinkIndex: link.Attrs().Index, Scope: netlink.SCOPE_LINK, Src: pod.Addr(false).AsSlice(),
				Dst: netlink.NewIPNet(other.Addr(false).AsSlice()),
			}
			if use {
				failed = pod.Netlink().RouteAdd(&route)
			} else {
				failed = pod.Netlink().RouteDel(&route)
			}
		}
		if failed != nil {
			err = errors.Join(err, fmt.Errorf("pod %s: route by %s: %w", pod.Name(), directLink, failed))
		}
	}
	return err
}
