// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/dataplanetest"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func webKey(i int) desired.FrontendKey {
	return desired.FrontendKey{
		AddrPort: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), 80),
		Protocol: desired.TCP,
	}
}

// street is a street with a backend.
type street struct {
	*Dataplane
	*dataplanetest.Street
	state *desired.State
}

func newStreet(t testing.TB, ports int) *street {
	kerneltest.Require(t, kerneltest.NFTables)
	s := &street{Street: dataplanetest.NewStreet(t, ports), state: desired.New(desired.Config{NodeName: "n1", MaxTable: desired.TableSizes()[1]})}
	var err error
	s.Dataplane, err = New(dataplane.Config{NetNS: s.Node.FD(), MasqueradeBit: dataplane.DefaultMasqueradeBit})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	s.state.SetService(dataplanetest.Service(corev1.ServiceSpec{}))
	s.open(0, ports)
	dataplanetest.Reconcile(t, s.Dataplane, s.state)
	return s
}

// open makes the ports from (and including) first up to (without) end the
// Service's backends, each by a slice of its own.
func (s *street) open(first, end int) {
	for i := first; i < end; i++ {
		s.state.SetEndpointSlice(dataplanetest.Slice(i))
	}
}

// shut takes backends away.
func (s *street) shut(first, end int) {
	for i := first; i < end; i++ {
		s.state.DeleteEndpointSlice("default", dataplanetest.SliceName(i))
	}
}

// TestSpread makes connections and asks by a chi-squared test whether all
// backends are equally likely. For each size the test fails by chance once in a
// million runs (the critical values below); a backend that is hit half or twice
// as often as the others fails it practically always.
func TestSpread(t *testing.T) {
	// Critical values of the chi-squared distribution for p = 1e-6, by
	// degrees of freedom.
	critical := map[int]float64{2: 27.631, 7: 40.522, 8: 42.701, 16: 58.326, 20: 65.419, 64: 133.2}
	for _, size := range []int{3, 8, 9, 17, 21, startSize + 1} {
		t.Run(fmt.Sprint(size, " backends"), func(t *testing.T) {
			if size == 8 || size == 17 || size == 21 {
				slow(t)
			}
			s := newStreet(t, size)
			perBackend := min(400, 8400/size)
			hits := map[uint16]int{}
			for range size * perBackend {
				reply, err := s.Client.Connect(lab.TCP, webKey(1).AddrPort)
				if err != nil {
					t.Fatal(err)
				}
				hits[reply.Local.Port()]++
			}
			var chi float64
			for i := range size {
				d := float64(hits[uint16(dataplanetest.FirstPort+i)] - perBackend)
				chi += d * d / float64(perBackend)
			}
			if len(hits) > size || chi > critical[size-1] {
				t.Errorf("chi-squared %.1f is above %.1f; hits by port: %v", chi, critical[size-1], hits)
			}
		})
	}
}

// TestNothingFailsMeanwhile makes connections all the time while the dataplane is programmed:
// pools grow and shrink beyond the sizes of their chains, and everything is written again, over
// existing tables and without any. No connection may fail or reach a port that was never a
// backend.
func TestNothingFailsMeanwhile(t *testing.T) {
	const ports = 20
	s := newStreet(t, ports)
	load, err := s.Client.StartLoad(t.Context(), lab.TCP, webKey(1).AddrPort, lab.LoadOptions{Workers: 4})
	if err != nil {
		t.Fatal(err)
	}
	stream, err := s.Client.Stream(lab.TCP, webKey(1).AddrPort, 5*time.Millisecond, lab.Timeout(20*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	const enough = 500 // connections, and at least so many rounds:
	for round := 0; round < 60 || load.Stats().OK < enough && round < 3000; round++ {
		size := 1 + (round*7)%(ports-1)
		svc := dataplanetest.Service(corev1.ServiceSpec{})
		svc.Annotations = map[string]string{desired.AnnotationScheduler: []string{"random", "rr", "maglev,maglev-port", "rr", "maglev"}[round%5]}
		s.state.SetService(svc)
		s.shut(size, ports)
		dataplanetest.Apply(t, s.Dataplane, s.state)
		s.open(size, ports)
		dataplanetest.Apply(t, s.Dataplane, s.state)
		switch round % 3 {
		case 0:
			dataplanetest.Reconcile(t, s.Dataplane, s.state)
		case 1: // another configuration makes another skeleton: the table is replaced
			s.config.MasqueradeBit ^= 1
			dataplanetest.Reconcile(t, s.Dataplane, s.state)
		}
		time.Sleep(2 * time.Millisecond)
	}
	stats := load.Stop()
	if stats.Failed > 0 || stats.OK < enough {
		t.Errorf("connections meanwhile: %v, first failure: %v", stats, stats.First)
	}
	if st := stream.Stats(); st.Failed > 0 || st.Moved > 0 || st.Received == 0 {
		t.Errorf("the connection that was established before: %+v", st)
	}
	if err := stream.Close(); err != nil {
		t.Error(err)
	}
}

// TestNobodyShutOutMeanwhile changes who may connect besides the client, which always may.
func TestNobodyShutOutMeanwhile(t *testing.T) {
	s := newStreet(t, 3)
	allow := func(others ...string) *corev1.Service {
		svc := dataplanetest.Service(corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, LoadBalancerSourceRanges: append(others, "10.244.1.0/24"),
		})
		svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}
		return svc
	}
	s.state.SetService(allow("172.16.0.0/12"))
	dataplanetest.Apply(t, s.Dataplane, s.state)
	load, err := s.Client.StartLoad(t.Context(), lab.TCP, netip.MustParseAddrPort("192.0.2.1:80"), lab.LoadOptions{Workers: 4})
	if err != nil {
		t.Fatal(err)
	}
	const enough = 500 // connections, and at least so many rounds:
	for round := 0; round < 300 || load.Stats().OK < enough && round < 3000; round++ {
		s.state.SetService(allow(fmt.Sprintf("172.16.%d.0/24", round%250), fmt.Sprintf("10.243.%d.0/24", round%200)))
		dataplanetest.Apply(t, s.Dataplane, s.state)
		if round%10 == 0 {
			dataplanetest.Reconcile(t, s.Dataplane, s.state)
		}
		time.Sleep(time.Millisecond)
	}
	if stats := load.Stop(); stats.Failed > 0 || stats.OK < enough {
		t.Errorf("connections meanwhile: %v", stats)
	}
}

// TestRenumbering takes over from a run of the proxy that learned of the same two Services in a
// different order, so that their pools have each other's IDs. A packet that is being processed
// during the change must not reach the other Service's backend, nor be refused.
func TestRenumbering(t *testing.T) {
	s := newStreet(t, 2)
	one := func(st *desired.State, i int) {
		name := fmt.Sprint("one-", i)
		st.SetService(&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
			Spec:       corev1.ServiceSpec{ClusterIP: webKey(i).Addr().String(), Ports: []corev1.ServicePort{{Port: 80}}},
		})
		if i > 2 {
			return // and has no endpoints
		}
		st.SetEndpointSlice(&discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}},
			AddressType: discoveryv1.AddressTypeIPv4,
			Ports:       []discoveryv1.EndpointPort{{Port: ptr.To(int32(dataplanetest.FirstPort + i - 1))}},
			Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.244.1.3"}}},
		})
	}
	var states []*desired.State
	for _, order := range [][]int{{1, 2, 3}, {2, 3, 1}, {3, 1, 2}} {
		st := desired.New(desired.Config{NodeName: "n1"})
		for _, i := range order {
			one(st, i)
		}
		states = append(states, st)
	}
	dataplanetest.Reconcile(t, s.Dataplane, states[0])
	ctx, stop := context.WithCancel(t.Context())
	results := make(chan error, 4)
	for range cap(results) {
		go func() {
			for ctx.Err() == nil {
				reply, err := s.Client.Connect(lab.TCP, webKey(1).AddrPort)
				if err == nil && reply.Local.Port() != dataplanetest.FirstPort {
					err = fmt.Errorf("reached port %d, another Service's", reply.Local.Port())
				}
				if err != nil {
					results <- err
					return
				}
			}
			results <- nil
		}()
	}
	for n, end := 0, time.Now().Add(8*time.Second); n < 3000 && time.Now().Before(end); n++ {
		dataplanetest.Reconcile(t, s.Dataplane, states[n%len(states)])
		if n%100 == 0 && len(results) > 0 {
			break
		}
	}
	stop()
	for range cap(results) {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
}

// TestForeignMasquerade masquerades the connections of a Service with session affinity in a
// chain of another program, with kube-proxy's priority. It was added later, so it runs first.
func TestForeignMasquerade(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTBinary)
	s := newStreet(t, 4)
	s.state.SetService(dataplanetest.Service(corev1.ServiceSpec{SessionAffinity: corev1.ServiceAffinityClientIP}))
	dataplanetest.Apply(t, s.Dataplane, s.state)
	dataplanetest.RunIn(t, s.Node.Namespace, `
		add table ip cni
		add chain ip cni postrouting { type nat hook postrouting priority 100; }
		add rule ip cni postrouting ct status dnat masquerade`, "nft", "-f", "-")
	hits := map[uint16]bool{}
	for range 30 {
		reply, err := s.Client.Connect(lab.TCP, webKey(1).AddrPort)
		if err != nil {
			t.Fatal(err)
		}
		hits[reply.Local.Port()] = true
	}
	if len(hits) != 1 {
		t.Errorf("one client was sent to %d backends", len(hits))
	}
}

// TestHandOver removes the tables while another proxy serves the same Service.
func TestHandOver(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTBinary)
	s := newStreet(t, 5)
	dataplanetest.HandOver(t, s.Street, s.Dataplane, s.state, 40)
}

// TestRejected rewrites the rules by another configuration.
func TestRejected(t *testing.T) {
	s := newStreet(t, 1)
	dataplanetest.Rejected(t, s.Street, s.Dataplane, func() (dataplane.Rejected, error) {
		c, err := s.Counts()
		return c.Rejected, err
	}, func(state *desired.State) {
		s.config.MasqueradeBit ^= 1
		dataplanetest.Reconcile(t, s.Dataplane, state)
	})
	if err := s.Check(t.Context()); err != nil {
		t.Error(err)
	}
	all, err := s.Counts()
	if err != nil {
		t.Fatal(err)
	}
	at, err := s.RejectedAt()
	for to, reason := range map[string]string{"10.96.0.2:80": dataplane.NoEndpoints, "10.96.0.3:80": dataplane.NoLocalEndpoints, "192.0.2.1:80": dataplane.SourceNotAllowed} {
		key := desired.FrontendKey{AddrPort: netip.MustParseAddrPort(to), Protocol: desired.TCP}
		if n := all.Rejected[desired.IPv4][reason]; n == 0 || at[key] != n {
			t.Errorf("%d packets to %s, %d for the reason %s", at[key], to, n, reason)
		}
	}
	if err != nil || len(at) != 3 {
		t.Errorf("%v, error %v", at, err)
	}
}

// TestNodePortTakeOver takes over the NodePorts of a run with other rules.
func TestNodePortTakeOver(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTables)
	street, runs := dataplanetest.NewStreet(t, 1), 0
	dataplanetest.NodePortTakeOver(t, street, false, func() dataplanetest.Backend {
		runs++
		b, err := New(dataplane.Config{NetNS: street.Node.FD(), MasqueradeBit: dataplane.DefaultMasqueradeBit + runs%2})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { b.Close() })
		return b
	}, func() {})
}

// TestPortInAnothersRange adds, replaces and removes, again and again, the port of a Service that is in the range of another
// one at the same external address. Meanwhile both are used: no connection fails, established ones stay, and new ones go
// where the last change says; with externalTrafficPolicy Local, the endpoint sees the client's address. A first packet that
// is inside the rules at the moment of the removal may be lost, as wherever a port is removed; TCP sends it again.
func TestPortInAnothersRange(t *testing.T) {
	for _, policy := range []corev1.ServiceExternalTrafficPolicy{"Cluster", "Local"} {
		for _, sources := range [][]string{nil, {"10.244.1.0/24"}} {
			t.Run(fmt.Sprint(policy, sources), func(t *testing.T) { portInAnothersRange(t, policy, sources) })
		}
	}
}

func portInAnothersRange(t *testing.T, policy corev1.ServiceExternalTrafficPolicy, sources []string) {
	const inRange, own, end = dataplanetest.FirstPort + 3, dataplanetest.FirstPort + 5, dataplanetest.FirstPort + 9 // own is the other Service's
	s := newStreet(t, 12)
	ip := netip.MustParseAddr("192.0.2.1")
	set := func(name string, created, port int32, annotations map[string]string, p corev1.ServiceExternalTrafficPolicy, targets ...int32) {
		svc := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Annotations: annotations, CreationTimestamp: metav1.Unix(int64(created), 0)},
			Spec: corev1.ServiceSpec{
				Type: corev1.ServiceTypeLoadBalancer, ClusterIP: fmt.Sprint("10.96.1.", created), ExternalTrafficPolicy: p,
				LoadBalancerSourceRanges: sources, Ports: []corev1.ServicePort{{Port: port}},
			},
		}
		svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: ip.String()}}
		s.state.SetService(svc)
		for i := range int32(2) {
			slice := dataplanetest.Slice(0)
			slice.Name, slice.Labels, slice.Endpoints[0].NodeName = fmt.Sprint(name, i), map[string]string{discoveryv1.LabelServiceName: name}, ptr.To("n1")
			if int(i) < len(targets) {
				slice.Ports[0].Port = &targets[i]
				s.state.SetEndpointSlice(slice)
			} else {
				s.state.DeleteEndpointSlice("default", slice.Name)
			}
		}
	}
	set("media", 2, 9, map[string]string{desired.AnnotationPortRanges: fmt.Sprintf("tcp/%d-%d", dataplanetest.FirstPort, end)}, policy, 9)
	dataplanetest.Apply(t, s.Dataplane, s.state)
	if err := s.Check(t.Context()); err != nil { // completes the rules
		t.Fatal(err)
	}
	load := func(port uint16, wants func(server uint16) bool) *lab.Load {
		l, err := s.Client.StartLoad(t.Context(), lab.TCP, netip.AddrPortFrom(ip, port), lab.LoadOptions{Workers: 2, Connect: []lab.ConnectOption{lab.Timeout(10 * time.Second)}, Result: func(_ time.Time, r lab.Reply, err error) {
			if err == nil && (!wants(r.Local.Port()) || (r.Seen.Addr() == r.Source.Addr()) != (policy == "Local")) {
				t.Errorf("a connection to port %d reached %s, which saw %s", port, r.Local, r.Seen)
			}
		}})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	stream := func(port uint16) *lab.Stream {
		st, err := s.Client.Stream(lab.TCP, netip.AddrPortFrom(ip, port), 5*time.Millisecond, lab.Timeout(20*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		return st
	}
	loads := []*lab.Load{load(inRange, func(p uint16) bool { return p == inRange }), load(own, func(p uint16) bool { return p == own || p > end })}
	streams := []*lab.Stream{stream(inRange), stream(own)}
	reaches := func(what string, want bool) {
		t.Helper()
		dataplanetest.Apply(t, s.Dataplane, s.state)
		if r, err := s.Client.Connect(lab.TCP, netip.AddrPortFrom(ip, own)); err != nil || (r.Local.Port() > end) != want {
			t.Fatalf("%s: a connection reached %s: %v", what, r.Local, err)
		}
	}
	enough := func() bool { return min(loads[0].Stats().OK, loads[1].Stats().OK) >= 300 }
	for round := 0; round < 30 || !enough() && round < 1000; round++ {
		set("other", 1, own, nil, policy, end+1)
		reaches("added", true)
		if round == 0 {
			streams = append(streams, stream(own))
		}
		set("other", 1, own, nil, policy, end+2)
		reaches("another endpoint", true)
		set("other", 1, own, map[string]string{desired.AnnotationScheduler: "rr"}, policy, end+1, end+2)
		reaches("two", true)
		s.state.DeleteService("default", "other")
		reaches("removed", false)
	}
	if !enough() {
		t.Error("not enough connections")
	}
	for i, l := range loads {
		if stats := l.Stop(); stats.Failed > 0 {
			t.Errorf("load %d: %v, first failure: %v", i, stats, stats.First)
		}
	}
	for i, st := range streams {
		if got := st.Stats(); got.Failed > 0 || got.Moved > 0 || got.Received == 0 {
			t.Errorf("stream %d: %+v", i, got)
		}
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	}
	dataplanetest.Has(t, s.Dataplane, s.state)
}
