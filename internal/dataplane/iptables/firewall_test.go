// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/dataplanetest"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/ipset"
	"github.com/slipstream-proxy/slipstream/internal/node/sysctl"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

const (
	nodePort   = 30080
	healthPort = 32000
)

// site is a node with one pod, which is the endpoint of a Service, and a neighbor.
type site struct {
	t        *testing.T
	node     *lab.Node
	pod      *lab.Pod
	neighbor *lab.Host
	backend  *Dataplane
	state    *desired.State
}

func newSite(t *testing.T, v Variant) *site {
	l := kerneltest.NewLab(t)
	s := &site{t: t}
	var err error
	s.node, err = l.Node("n1", lab.NodeOptions{
		Addresses: []netip.Prefix{netip.MustParsePrefix("192.168.100.11/24")},
		PodCIDRs:  []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")},
	})
	s.must(err)
	s.pod, err = s.node.Pod("pod", netip.MustParseAddr("10.244.1.2"))
	s.must(err)
	_, err = s.pod.Serve(lab.TCP, netip.MustParseAddrPort("0.0.0.0:8080"))
	s.must(err)
	s.neighbor, err = l.Host("neighbor", netip.MustParsePrefix("192.168.100.200/24"))
	s.must(err)
	s.backend, err = New(t.Context(), dataplane.Config{NetNS: s.node.FD(), MasqueradeBit: dataplane.DefaultMasqueradeBit}, Options{Variant: v})
	s.must(err)
	t.Cleanup(func() { s.backend.Close() })
	s.state = desired.New(desired.Config{NodeName: "n1", NodePorts: desired.NodePortAddresses{Loopback: true}})
	s.state.SetNodeAddresses([]netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("192.168.100.11")})
	s.service("web", healthPort)
	s.state.SetEndpointSlice(&discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Port: ptr.To[int32](8080)}},
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.244.1.2"}, NodeName: ptr.To("n1")}},
	})
	return s
}

// service is a Service of type LoadBalancer with a port for health checks, or no such
// Service if that is 0.
func (s *site) service(name string, health int32) {
	if health == 0 {
		s.state.DeleteService("default", name)
		return
	}
	ports := map[string]corev1.ServicePort{"web": {Port: 80, NodePort: nodePort}, "other": {Port: 81}}
	s.state.SetService(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "10.96.0.1",
			Ports:                 []corev1.ServicePort{ports[name]},
			ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal, HealthCheckNodePort: health,
		},
	})
}

func (s *site) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) run(command string, args ...string) {
	s.t.Helper()
	_, err := s.node.Run(s.t.Context(), command, args...)
	s.must(err)
}

// How long to wait for an expected packet, and for an unexpected one.
const (
	patience = time.Minute
	silence  = 300 * time.Millisecond
)

// wants makes a connection and checks its result ("ok", "refused", "timeout").
func (s *site) wants(what string, from *lab.Machine, to, want string) {
	s.t.Helper()
	timeout := patience
	if want == "timeout" {
		timeout = silence
	}
	_, err := from.Connect(lab.TCP, netip.MustParseAddrPort(to), lab.Timeout(timeout))
	if got := lab.Outcome(err); got != want {
		s.t.Errorf("%s: %s, want %s", what, got, want)
	}
}

// TestLoopback makes sure that NodePorts on 127.0.0.1 answer the node, and that a neighbor
// reaches nothing there: route_localnet would let it in (CVE-2020-8558).
func TestLoopback(t *testing.T) {
	eachVariant(t, func(t *testing.T, v Variant) {
		s := newSite(t, v)
		_, err := s.node.Serve(lab.TCP, netip.MustParseAddrPort("127.0.0.1:9000"))
		s.must(err)
		s.must(s.node.Do(func() error { return sysctl.RouteLocalnet(t.Context()) }))
		s.must(s.node.SetSysctl("ipv4/conf/all/rp_filter", "0"))
		s.must(s.node.SetSysctl("ipv4/conf/eth0/rp_filter", "0"))
		// To the neighbor, 127.0.0.1 is an address like any other, and at the node;
		// 127.0.0.5 is its own.
		s.must(s.neighbor.Do(func() error { return sysctl.RouteLocalnet(t.Context()) }))
		for _, args := range [][]string{
			{"addr", "del", "127.0.0.1/8", "dev", "lo"},
			{"route", "add", "127.0.0.1", "via", "192.168.100.11", "src", "192.168.100.200"},
			{"addr", "add", "127.0.0.5/32", "dev", "lo"},
		} {
			_, err := s.neighbor.Run(t.Context(), "ip", args...)
			s.must(err)
		}
		s.wants("a neighbor, without rules", &s.neighbor.Machine, "127.0.0.1:9000", "ok")
		if !s.hears("127.0.0.5", patience) {
			t.Error("a datagram with source 127.0.0.5 does not arrive without rules, so this test proves nothing")
		}
		for range 2 { // the second time nothing is missing
			s.must(s.node.Do(func() error { return RouteLocalnet(t.Context()) }))
			s.wants("a neighbor, before Services are programmed", &s.neighbor.Machine, "127.0.0.1:9000", "timeout")
		}
		dataplanetest.Reconcile(t, s.backend, s.state)
		s.must(s.backend.Check(t.Context()))
		s.wants("a neighbor", &s.neighbor.Machine, "127.0.0.1:9000", "timeout")
		if s.hears("127.0.0.5", silence) {
			t.Error("a neighbor's datagram with source 127.0.0.5 arrives")
		}
		s.wants("the node", &s.node.Machine, "127.0.0.1:9000", "ok")
		s.wants("the node, to a NodePort", &s.node.Machine, fmt.Sprint("127.0.0.1:", nodePort), "ok")
		s.wants("the neighbor, to a NodePort", &s.neighbor.Machine, fmt.Sprint("192.168.100.11:", nodePort), "ok")
		s.wants("a pod, to the node", &s.pod.Machine, fmt.Sprint("192.168.100.11:", nodePort), "ok")

		// While route_localnet is set, the rule stays.
		save := v.command(desired.IPv4, "-save")
		s.must(s.backend.Cleanup(t.Context()))
		s.wants("a neighbor, after cleanup", &s.neighbor.Machine, "127.0.0.1:9000", "timeout")
		s.wants("the node, after cleanup", &s.node.Machine, "127.0.0.1:9000", "ok")
		out, err := s.node.Run(t.Context(), save)
		s.must(err)
		if left := strings.ReplaceAll(string(out), chainLocalnet, ""); strings.Contains(left, prefix) {
			t.Errorf("after cleanup there is more than %s:\n%s", chainLocalnet, out)
		}
		s.must(s.node.SetSysctl("ipv4/conf/all/route_localnet", "0"))
		s.must(s.backend.Cleanup(t.Context()))
		if out, err := s.node.Run(t.Context(), save); err != nil || strings.Contains(string(out), prefix) {
			t.Errorf("without route_localnet something stays (%v):\n%s", err, out)
		}
	})
}

// TestRouteLocalnetLast does not set route_localnet where the rule that it needs cannot be
// programmed.
func TestRouteLocalnetLast(t *testing.T) {
	requireVariant(t, Legacy)
	k := newKernel(t, Legacy)
	k.run("iptables-legacy -A INPUT -j ACCEPT") // which decides the variant
	holdLock(t)
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(100*time.Millisecond, cancel)
	if err := k.ns.Do(func() error { return RouteLocalnet(ctx) }); !errors.Is(err, context.Canceled) {
		t.Errorf("the rule: %v", err)
	}
	if set := k.run("cat /proc/sys/net/ipv4/conf/all/route_localnet"); set != "0\n" {
		t.Errorf("without the rule, route_localnet is %s", set)
	}
}

// hears says whether a datagram of the neighbor with a source address arrives at a socket of
// the node on 127.0.0.1.
func (s *site) hears(from string, within time.Duration) bool {
	s.t.Helper()
	var listener net.PacketConn
	s.must(s.node.Do(func() (err error) {
		listener, err = net.ListenPacket("udp4", "127.0.0.1:9001")
		return err
	}))
	defer listener.Close()
	s.must(s.neighbor.Do(func() error {
		conn, err := net.DialUDP("udp4", &net.UDPAddr{IP: net.ParseIP(from)}, &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 9001})
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = conn.Write([]byte("hello"))
		return err
	}))
	s.must(listener.SetReadDeadline(time.Now().Add(within)))
	_, _, err := listener.ReadFrom(make([]byte, 10))
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		s.t.Fatal(err)
	}
	return err == nil
}

// TestFirewall makes sure that packets of Services are accepted and forwarded where the node's
// policy is DROP.
func TestFirewall(t *testing.T) {
	eachVariant(t, func(t *testing.T, v Variant) {
		s := newSite(t, v)
		_, err := s.node.Serve(lab.TCP, netip.AddrPortFrom(netip.IPv4Unspecified(), healthPort))
		s.must(err)
		// Other rules let in answers; kube-proxy counts on that, too.
		s.run(v.command(desired.IPv4, ""), "-A", "INPUT", "-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED", "-j", "ACCEPT")
		s.run(v.command(desired.IPv4, ""), "-P", "INPUT", "DROP")
		s.run(v.command(desired.IPv4, ""), "-P", "FORWARD", "DROP")
		address := fmt.Sprint("192.168.100.11:", healthPort)
		s.wants("a health check before there is a Service", &s.neighbor.Machine, address, "timeout")
		dataplanetest.Reconcile(t, s.backend, s.state)
		s.wants("a health check", &s.neighbor.Machine, address, "ok")
		s.wants("the pod, to itself", &s.pod.Machine, "10.96.0.1:80", "ok")
		s.wants("the pod, to itself by a NodePort", &s.pod.Machine, fmt.Sprint("192.168.100.11:", nodePort), "ok")
		s.service("web", healthPort+1)
		dataplanetest.Apply(t, s.backend, s.state)
		s.wants("a health check at a former port", &s.neighbor.Machine, address, "timeout")

		s.state.DeleteEndpointSlice("default", "web-1")
		dataplanetest.Apply(t, s.backend, s.state)
		if n := s.backend.tables[0].forward.leaves; len(n) != 0 {
			t.Errorf("still accepted: %v", n)
		}
	})
}

// TestHealthPorts makes sure that the set of ports follows Services, also when two have the
// same port and when one takes over another's.
func TestHealthPorts(t *testing.T) {
	eachVariant(t, func(t *testing.T, v Variant) {
		s := newSite(t, v)
		dataplanetest.Reconcile(t, s.backend, s.state)
		for _, step := range []struct {
			web, other int32
			want       []uint16
		}{
			{1000, 2000, []uint16{1000, 2000}},
			{2000, 1000, []uint16{1000, 2000}}, // exchanged
			{2000, 2000, []uint16{2000}},
			{3000, 2000, []uint16{2000, 3000}},
			{0, 3000, []uint16{3000}}, // taken over
			{0, 0, nil},
			{65535, 1, []uint16{1, 65535}},
		} {
			s.service("web", step.web)
			s.service("other", step.other)
			dataplanetest.Apply(t, s.backend, s.state)
			for again := range 2 {
				got, err := s.backend.sets.List(setName(desired.IPv4, setHealthChecks))
				s.must(err)
				want := map[member]bool{}
				for _, port := range step.want {
					want[ipset.Port(port)] = true
				}
				if !maps.Equal(got, want) {
					t.Errorf("%d and %d: %v, want %v", step.web, step.other, got, want)
				}
				s.must(s.backend.Check(t.Context()))
				if again == 0 {
					dataplanetest.Reconcile(t, s.backend, s.state)
				}
			}
		}
	})
}
