// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/cilium/ebpf/link"
	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// TestEndpointsChange adds and removes endpoints under constant new connections. None fails or
// reaches a port that is no endpoint, until the last endpoint is removed.
func TestEndpointsChange(t *testing.T) {
	w := serve(t, 1, nil)
	load, err := w.client.StartLoad(t.Context(), lab.TCP, frontends[0], lab.LoadOptions{Workers: 2})
	w.check(err)
	// An emulated machine makes few connections meanwhile, so that it needs more rounds.
	for round := 0; round < 60 || load.Stats().OK < 60 && round < 6000; round++ {
		w.endpoints(1 + round*5%ports)
		w.apply()
		time.Sleep(2 * time.Millisecond)
	}
	if stats := load.Stop(); stats.Failed > 0 || stats.OK < 60 {
		t.Errorf("connections meanwhile: %v, first failure: %v", stats, stats.First)
	}
	w.endpoints(1)
	w.apply()
	for range 30 {
		reply, err := w.client.Connect(lab.TCP, frontends[0])
		w.check(err)
		if reply.Local.Port() != firstPort {
			t.Fatalf("port %d is no endpoint any more", reply.Local.Port())
		}
	}
	w.endpoints(0)
	w.apply()
	w.direct(&w.client.Machine, false)
	w.endpoints(2)
	w.apply()
	w.direct(&w.client.Machine, true)
	w.state.DeleteService("default", "web")
	w.apply()
	w.direct(&w.client.Machine, false)
}

// TestLeftAlone has Services that only the dataplane can serve. A change makes them ordinary.
func TestLeftAlone(t *testing.T) {
	annotated := func(scheduler string) func(*corev1.Service) {
		return func(s *corev1.Service) { s.Annotations = map[string]string{desired.AnnotationScheduler: scheduler} }
	}
	for name, change := range map[string]func(*corev1.Service){
		"affinity":          func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP },
		"hash":              annotated("maglev"),
		"least connections": annotated("lc"),
		"limits": func(s *corev1.Service) {
			s.Annotations = map[string]string{desired.AnnotationMaxConnections: "1000"}
		},
		"UDP": func(s *corev1.Service) { s.Spec.Ports[0].Protocol = corev1.ProtocolUDP },
	} {
		t.Run(name, func(t *testing.T) {
			w := serve(t, 2, change)
			w.direct(&w.client.Machine, false)
			w.state.SetService(service())
			w.apply()
			w.direct(&w.client.Machine, true)
		})
	}
	t.Run("source ranges", func(t *testing.T) {
		w := serve(t, 2, func(s *corev1.Service) {
			s.Spec.Type = corev1.ServiceTypeLoadBalancer
			s.Spec.LoadBalancerSourceRanges = []string{"10.0.0.0/8"}
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.9"}}
		})
		w.connects(&w.client.Machine, at("203.0.113.9", webPort), false)
		w.connects(&w.client.Machine, frontends[0], true)
	})
}

// TestLocalPolicy has endpoints on another node, which internalTrafficPolicy: Local excludes. Local clients
// of external addresses may use them with externalTrafficPolicy: Local too.
func TestLocalPolicy(t *testing.T) {
	w := serve(t, 1, func(s *corev1.Service) {
		s.Spec.InternalTrafficPolicy = ptr.To(corev1.ServiceInternalTrafficPolicyLocal)
		s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	})
	w.state.SetEndpointSlice(&discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: "elsewhere", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: ptr.To(int32(firstPort + 1))}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.244.1.3"}, NodeName: ptr.To("another")}},
	})
	w.apply()
	hits := map[string]map[uint16]int{}
	for _, to := range []string{"10.96.0.1:80", "203.0.113.1:80"} {
		hits[to] = map[uint16]int{}
		for range 40 {
			reply, err := w.client.Connect(lab.TCP, netip.MustParseAddrPort(to))
			w.check(err)
			hits[to][reply.Local.Port()]++
		}
	}
	if len(hits["10.96.0.1:80"]) != 1 || len(hits["203.0.113.1:80"]) != 2 {
		t.Errorf("hits by port: %v", hits)
	}
}

// TestOverride has another Service claim an address of the node, with the port of a NodePort, as its external IP, which
// it does not get, and an address that is a ClusterIP.
func TestOverride(t *testing.T) {
	w := serve(t, 1, nil)
	s := service()
	s.Name, s.Spec.Type, s.Spec.ClusterIP = "other", corev1.ServiceTypeClusterIP, "10.96.0.2"
	s.Spec.ClusterIPs, s.Spec.ExternalIPs = []string{"10.96.0.2"}, []string{"192.168.100.11"}
	s.Spec.Ports[0] = corev1.ServicePort{Port: nodePort}
	s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	w.state.SetService(s)
	w.apply()
	w.connects(&w.client.Machine, frontends[4], true)
	w.connects(&w.client.Machine, frontends[5], true)
	w.state.DeleteService("default", "other")
	w.apply()
	w.connects(&w.client.Machine, frontends[4], true)
	w.connects(&w.client.Machine, at("127.0.0.1", nodePort), false)

	s.Spec.ClusterIP, s.Spec.ClusterIPs, s.Spec.ExternalIPs = "fd00:100::11", []string{"fd00:100::11"}, nil
	w.state.SetService(s)
	w.apply()
	w.connects(&w.client.Machine, frontends[5], false)
	w.state.DeleteService("default", "other")
	w.apply()
	w.connects(&w.client.Machine, frontends[5], true)
}

// TestNamespaces has pods whose network namespaces appear and disappear, and one that no runtime has made.
func TestNamespaces(t *testing.T) {
	w := serve(t, 1, nil)
	late := w.pod("late", 4)
	w.direct(&late.Machine, false)
	unmount := w.name(late, 2)
	w.check(w.scan())
	w.direct(&late.Machine, true)
	w.reconcile()
	w.direct(&late.Machine, true)
	unmount()
	w.check(w.scan())
	w.direct(&late.Machine, false)
	w.direct(&w.client.Machine, true)
}

// TestFollowsNamespaces waits until Run has seen that of a pod.
func TestFollowsNamespaces(t *testing.T) {
	w := serve(t, 1, nil)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); w.Run(ctx) }()
	defer func() {
		cancel()
		<-done
	}()
	late := w.pod("late", 4)
	w.name(late, 2)
	for start := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		if _, err := late.Connect(lab.TCP, frontends[0]); err == nil {
			return
		}
		if time.Since(start) > 20*time.Second {
			t.Fatal("the pod's network namespace is not served")
		}
	}
}

// TestAdopt restarts under constant new connections, and leaves a connection alone that has begun.
func TestAdopt(t *testing.T) {
	w := serve(t, 2, nil)
	c, err := w.client.DialContext(t.Context(), "tcp", frontends[0].String())
	w.check(err)
	defer c.Close()
	load, err := w.client.StartLoad(t.Context(), lab.TCP, frontends[0], lab.LoadOptions{Workers: 2})
	w.check(err)
	for range 10 {
		w.check(w.Close())
		time.Sleep(5 * time.Millisecond)
		w.start()
		w.reconcile()
		w.reconcile()
	}
	if stats := load.Stop(); stats.Failed > 0 || stats.OK < 20 {
		t.Errorf("connections meanwhile: %v, first failure: %v", stats, stats.First)
	}
	if peer := peerOf(t, c); peer != frontends[0] {
		t.Errorf("the peer of a connection from before is %s", peer)
	}
	if s, err := w.Stats(); err != nil || s.Connections < 20 {
		t.Errorf("%d connections were counted (%v)", s.Connections, err)
	}
	w.endpoints(0)
	w.apply()
	w.connects(&w.client.Machine, frontends[0], false)
}

// TestDamage has another program detach the programs, and remove their pins.
func TestDamage(t *testing.T) {
	w := serve(t, 1, nil)
	w.check(w.Check(t.Context()))
	for name, harm := range map[string]func(l link.Link) error{
		"detach": func(l link.Link) error { return l.Detach() },
		"unpin":  func(link.Link) error { return os.Remove(w.dir + "/connect4") },
		"all":    func(link.Link) error { return os.RemoveAll(w.dir) },
	} {
		l, err := link.LoadPinnedLink(w.dir+"/connect4", nil)
		w.check(err)
		w.check(harm(l))
		w.check(l.Close())
		if err := w.Check(t.Context()); !errors.Is(err, dataplane.ErrDamaged) {
			t.Errorf("%s: %v", name, err)
		}
		w.reconcile()
		w.check(w.Check(t.Context()))
		w.direct(&w.client.Machine, true)
	}
	w.check(w.Close())
	w.direct(&w.client.Machine, true)
	w.check(Remove(w.node.FD()))
	w.direct(&w.client.Machine, false)
	w.start()
}

// TestChangeIsSmall has 10,000 Services of 10 endpoints, and counts what a change of one writes.
func TestChangeIsSmall(t *testing.T) {
	w := newWorld(t)
	add := func(i, endpoints int) {
		name := fmt.Sprint("web-", i)
		s := service()
		s.Name, s.Spec.Type, s.Spec.Ports[0].NodePort, s.Spec.ExternalIPs = name, corev1.ServiceTypeClusterIP, 0, nil
		s.Spec.ClusterIP = netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}).String()
		s.Spec.ClusterIPs = []string{s.Spec.ClusterIP}
		w.state.SetService(s)
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}},
			AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: ptr.To(int32(firstPort))}},
		}
		for e := range endpoints {
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.244.1.%d", 3+e)}})
		}
		w.state.SetEndpointSlice(slice)
	}
	const services = 10000
	for i := range services {
		add(i, 10)
	}
	w.reconcile()
	last := at(fmt.Sprintf("10.96.%d.%d", (services-1)>>8, (services-1)&255), webPort)
	for i, want := range []int{2, 2, 2} { // a slot and the number of slots
		add(services-1, []int{9, 10, 11}[i])
		stats, err := w.Apply(t.Context(), &w.state.Change().Change)
		w.check(err)
		if stats.Elements != want {
			t.Errorf("step %d: %d elements were written, want %d", i, stats.Elements, want)
		}
	}
	add(services-1, 1)
	w.apply()
	w.connects(&w.client.Machine, last, true)
}
