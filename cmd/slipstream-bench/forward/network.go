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
	"github.com/slipstream-proxy/slipstream/internal/fastpath"
	"github.com/slipstream-proxy/slipstream/test/lab"
	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// network is a client, a server behind a Service, and the nodes between them.
type network struct {
	lab            *lab.Lab
	nodes          []*node
	client, server *lab.Pod
	addresses
}

// node forwards, with a Service proxy and, while it is on, the fast path.
type node struct {
	*lab.Node
	services *desired.Change
	proxy    *nftables.Backend

	fastPath *fastpath.Controller // nil while it is off
	stop     context.CancelFunc
	stopped  chan error // what fastPath.Run returned
}

// addresses are a network's, of one family.
type addresses struct {
	ipv6      bool
	nodes     netip.Prefix
	pods      netip.Prefix // of all nodes
	clusterIP netip.Addr
}

var addressesOf = map[string]addresses{
	FamilyIPv4: {false, netip.MustParsePrefix("192.168.100.0/24"), netip.MustParsePrefix("10.244.0.0/16"), netip.MustParseAddr("10.96.0.1")},
	FamilyIPv6: {true, netip.MustParsePrefix("fd00:1::/64"), netip.MustParsePrefix("fd00:244::/32"), netip.MustParseAddr("fd00:96::1")},
}

// podCIDR is the range of the pods on a node.
func (a addresses) podCIDR(node int) netip.Prefix {
	b := a.pods.Addr().AsSlice()
	b[a.pods.Bits()/8] = byte(1 + node)
	ip, _ := netip.AddrFromSlice(b)
	return netip.PrefixFrom(ip, a.pods.Bits()+8)
}

// host is the address in a range that ends in a number.
func host(p netip.Prefix, number byte) netip.Addr {
	b := p.Addr().AsSlice()
	b[len(b)-1] = number
	ip, _ := netip.AddrFromSlice(b)
	return ip
}

func newNetwork(ctx context.Context, o *Options) (n *network, err error) {
	n = &network{addresses: addressesOf[o.Family]}
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
			Addresses: []netip.Prefix{netip.PrefixFrom(host(n.addresses.nodes, byte(11+i)), n.addresses.nodes.Bits())},
			PodCIDRs:  []netip.Prefix{n.podCIDR(i)},
		})
		if err != nil {
			return nil, err
		}
		n.nodes = append(n.nodes, &node{Node: m})
	}
	last := o.Nodes - 1
	if n.client, err = n.nodes[0].Pod("client", host(n.podCIDR(0), 2)); err != nil {
		return nil, err
	}
	if n.server, err = n.nodes[last].Pod("server", host(n.podCIDR(last), 3)); err != nil {
		return nil, err
	}
	for _, m := range n.nodes {
		if err := n.program(ctx, m); err != nil {
			return nil, fmt.Errorf("%s: %w", m.Name(), err)
		}
	}
	return n, nil
}

// program programs the Service on a node.
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
	for _, m := range n.nodes {
		if err := m.setFastPath(ctx, s.Threshold); err != nil {
			return fmt.Errorf("%s: setting %q: %w", m.Name(), s.Name, err)
		}
		err := m.Do(func() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) })
		if err != nil {
			return fmt.Errorf("%s: flush of connection tracking: %w", m.Name(), err)
		}
	}
	return nil
}

// setFastPath starts the fast path anew with a threshold; 0 leaves nothing of it.
func (m *node) setFastPath(ctx context.Context, threshold uint32) error {
	if err := m.stopFastPath(); err != nil || threshold == 0 {
		return err
	}
	c, err := fastpath.New(fastpath.Config{NetNS: m.FD(), Threshold: threshold})
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

// probe fails with [fastpath.ErrUnsupported] on a kernel without flowtables.
func (n *network) probe() error {
	c, err := fastpath.New(fastpath.Config{NetNS: n.nodes[0].FD(), Threshold: 1})
	if err != nil {
		return err
	}
	return c.Close()
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

// servicePort is one port of the Service, the same on the backend.
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

// frontend is where clients connect to.
func (n *network) frontend(p servicePort) netip.AddrPort {
	return netip.AddrPortFrom(n.clusterIP, p.port)
}

// backend is where the server listens.
func (n *network) backend(p servicePort) netip.AddrPort {
	return netip.AddrPortFrom(n.server.Addr(n.ipv6), p.port)
}

// service is the desired state of a node: one Service with one backend.
func (n *network) service(m *lab.Node) (*desired.Change, error) {
	meta := metav1.ObjectMeta{Namespace: "bench", Name: "server"}
	svc := &corev1.Service{
		ObjectMeta: meta,
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ClusterIP: n.clusterIP.String(), ClusterIPs: []string{n.clusterIP.String()}},
	}
	meta.Labels = map[string]string{discoveryv1.LabelServiceName: meta.Name}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  meta,
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{
			Addresses:  []string{n.server.Addr(n.ipv6).String()},
			Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true), Serving: ptr.To(true)},
			NodeName:   ptr.To(n.server.Node().Name()),
		}},
	}
	if n.ipv6 {
		slice.AddressType = discoveryv1.AddressTypeIPv6
	}
	for _, p := range []servicePort{streamPort, requestPort, floodPort} {
		svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: p.name, Protocol: p.protocol, Port: int32(p.port)})
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &p.name, Protocol: &p.protocol, Port: ptr.To(int32(p.port))})
	}
	state := desired.New(desired.Config{
		NodeName:    m.Name(),
		DetectLocal: desired.DetectLocal{CIDRs: []netip.Prefix{n.pods}},
	})
	state.SetNodeAddresses(m.Addrs())
	state.SetService(svc)
	state.SetEndpointSlice(slice)
	full := state.Full()
	if len(full.Problems) > 0 {
		return nil, full.Problems[0]
	}
	return &full.Change, nil
}
