// SPDX-License-Identifier: Apache-2.0

package dataplanetest

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// FirstPort is the first port on which a street's server listens.
const FirstPort = 8000

// Street is a node with a client and one server that listens on many ports. Each port is
// an endpoint of Service default/web.
type Street struct {
	Lab            *lab.Lab
	Node           *lab.Node
	Client, Server *lab.Pod
}

// NewStreet creates a street with a server that listens on a number of ports.
func NewStreet(t testing.TB, ports int) *Street {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	s := Street{Lab: kerneltest.NewLab(t)}
	var err error
	s.Node, err = s.Lab.Node("n1", lab.NodeOptions{
		Addresses: []netip.Prefix{netip.MustParsePrefix("192.168.100.11/24")},
		PodCIDRs:  []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")},
	})
	must(err)
	s.Client, err = s.Node.Pod("client", netip.MustParseAddr("10.244.1.2"))
	must(err)
	s.Server, err = s.Node.Pod("server", netip.MustParseAddr("10.244.1.3"))
	must(err)
	for i := range ports {
		_, err := s.Server.Serve(lab.TCP, netip.AddrPortFrom(netip.IPv4Unspecified(), uint16(FirstPort+i)))
		must(err)
	}
	return &s
}

// SliceName returns the name of a port's slice.
func SliceName(i int) string { return fmt.Sprint("web-", i) }

// Slice returns the slice with one port of the server, counted from 0, as its endpoint.
func Slice(i int) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: SliceName(i), Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Port: new(int32(FirstPort + i))}},
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.244.1.3"}}},
	}
}

// Service returns default/web at 10.96.0.1:80, with a given specification otherwise.
func Service(spec corev1.ServiceSpec) *corev1.Service {
	spec.ClusterIP, spec.Ports = "10.96.0.1", []corev1.ServicePort{{Port: 80}}
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}, Spec: spec}
}

// another is the ruleset of another proxy, such as kube-proxy, that serves the same Service.
// It translates the ClusterIP and masquerades marked packets.
const another = `
add table ip another
add chain ip another prerouting { type nat hook prerouting priority -100; }
add chain ip another postrouting { type nat hook postrouting priority 100; }
add rule ip another prerouting ip daddr 10.96.0.1 tcp dport 80 dnat to 10.244.1.3:%d
add rule ip another postrouting meta mark and %#x != 0 masquerade`

// HandOver adds another proxy's rules for the street's Service. Then, for a number of
// rounds, the dataplane runs Cleanup and Reconcile under constant new connections. No
// connection may fail.
func HandOver(t *testing.T, s *Street, b dataplane.Dataplane, state *desired.State, rounds int) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	script := fmt.Sprintf(another, FirstPort, 1<<dataplane.DefaultMasqueradeBit)
	if out, err := s.Node.Run(ctx, "nft", script); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	web := netip.MustParseAddrPort("10.96.0.1:80")
	load, err := s.Client.StartLoad(ctx, lab.TCP, web, lab.LoadOptions{Workers: 4})
	if err != nil {
		t.Fatal(err)
	}
	for round := range rounds {
		if err := b.Cleanup(ctx); err != nil {
			t.Fatal(err)
		}
		Reconcile(t, b, state)
		if stats := load.Stats(); stats.Failed > 0 {
			t.Fatalf("round %d: %v", round, stats)
		}
	}
	if stats := load.Stop(); stats.Failed > 0 || stats.OK < int64(rounds) {
		t.Errorf("connections meanwhile: %v", stats)
	}
}

// NodePortTakeOver programs a NodePort, by address (as earlier versions did) or not, and has another run
// take it over, under constant new connections to it. None may fail, nor one that exists; a packet
// that is inside the old rules at that moment may be lost once. age changes what the first run has
// programmed.
func NodePortTakeOver(t *testing.T, s *Street, byAddress bool, open func() Backend, age func()) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	state := func(byAddress bool) *desired.State {
		all := desired.New(desired.Config{NodeName: "n1", IPVS: byAddress})
		all.SetNodeAddresses(s.Node.Addrs())
		svc := Service(corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort})
		svc.Spec.Ports[0].NodePort = 30080
		all.SetService(svc)
		all.SetEndpointSlice(Slice(0))
		return all
	}
	to := netip.MustParseAddrPort("192.168.100.11:30080")
	for round := range 5 {
		Reconcile(t, open(), state(byAddress))
		age()
		load, err := s.Client.StartLoad(ctx, lab.TCP, to, lab.LoadOptions{Workers: 4, Connect: []lab.ConnectOption{lab.Timeout(20 * time.Second)}})
		if err != nil {
			t.Fatal(err)
		}
		stream, err := s.Client.Stream(lab.TCP, to, 5*time.Millisecond, lab.Timeout(20*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		wait := func() { // for 50 more connections, or a failure
			before := load.Stats()
			for deadline := time.Now().Add(time.Minute); load.Stats().OK < before.OK+50 && load.Stats().Failed == 0 && time.Now().Before(deadline); {
				time.Sleep(time.Millisecond)
			}
		}
		wait()
		next := open()
		Reconcile(t, next, state(false))
		wait()
		Has(t, next, state(false))
		if err := next.Check(t.Context()); err != nil {
			t.Error(err)
		}
		if stats := load.Stop(); stats.Failed > 0 || stats.OK < 100 {
			t.Errorf("round %d: connections meanwhile: %v, first failure: %v", round, stats, stats.First)
		}
		if st := stream.Stats(); st.Failed > 0 || st.Ended || st.Received == 0 {
			t.Errorf("round %d: the connection that existed: %+v", round, st)
		}
		if err := stream.Close(); err != nil {
			t.Error(err)
		}
	}
}
