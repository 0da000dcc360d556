// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// stateWithThief has a NodePort of 2020 at the node's address, and a Service of 2026 with the external IP and
// the port of that.
func stateWithThief() *State {
	s := New(Config{NodeName: "n1"})
	s.SetNodeAddresses([]netip.Addr{netip.MustParseAddr("192.0.2.1")})
	created := func(year int) metav1.Time { return metav1.NewTime(time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC)) }
	s.SetService(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "victim", Name: "bank", CreationTimestamp: created(2020)},
		Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.1", Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Port: 80, NodePort: 30080}}},
	})
	s.SetService(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: "thief", CreationTimestamp: created(2026)},
		Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.2", ExternalIPs: []string{"192.0.2.1"}, Ports: []corev1.ServicePort{{Port: 30080}}},
	})
	s.Full()
	return s
}

// TestNodePortIsNotTaken checks that a newer external IP does not take the NodePort of an older Service.
func TestNodePortIsNotTaken(t *testing.T) {
	key := FrontendKey{AddrPort: netip.MustParseAddrPort("192.0.2.1:30080"), Protocol: TCP}
	if name := stateWithThief().FrontendAt(key).Service; name.Name != "bank" {
		t.Errorf("%s belongs to Service %s", key, name)
	}
}

// TestTakenNodePortIsShown checks that the view of a Service says which of its addresses another one has: of the
// Service with the external IP, and of the one with the NodePort, once a load balancer has the node's address.
func TestTakenNodePortIsShown(t *testing.T) {
	s := stateWithThief()
	owner := func(name string) (owner string) {
		s.ViewServices(func(n types.NamespacedName) bool { return n.Name == name }, false, func(v *ServiceView) {
			for _, f := range v.Ports[0].Frontends {
				if f.Address == "192.0.2.1:30080/TCP" {
					owner = f.Owner
				}
			}
		})
		return owner
	}
	if bank, thief := owner("bank"), owner("thief"); bank != "" || thief != "victim/bank" {
		t.Errorf("the owners are %q for bank and %q for thief", bank, thief)
	}
	s.SetService(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "infra", Name: "balanced"},
		Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.3", Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: 30080}}},
		Status:     corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}}},
	})
	s.Change()
	if bank := owner("bank"); bank != "infra/balanced" {
		t.Errorf("the owner is %q", bank)
	}
}

// TestExternalIPOfAPIServer has a Service claim the address and the port of the API server, which slices of
// default/kubernetes have. It would cut off all nodes, also from the deletion of that Service.
func TestExternalIPOfAPIServer(t *testing.T) {
	s := New(Config{NodeName: "n1"})
	s.SetEndpointSlice(&discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: "kubernetes", Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: ptr.To("https"), Port: ptr.To[int32](6443)}},
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.10"}}},
	})
	problems := claimExternal(s, "192.0.2.10", 6443)
	key := FrontendKey{AddrPort: netip.MustParseAddrPort("192.0.2.10:6443"), Protocol: TCP}
	if f := s.FrontendAt(key); f != nil || len(problems) != 1 {
		t.Errorf("%s: frontend %+v, problems %v", key, f, problems)
	}
	if c := s.Change(); len(c.Problems) != 0 {
		t.Errorf("again: %v", c.Problems)
	}
	// It is served once no API server has the address, and other ports are.
	s.DeleteEndpointSlice("default", "kubernetes")
	if s.Change(); s.FrontendAt(key) == nil {
		t.Errorf("%s is not served without the API server", key)
	}
	s = New(Config{APIServers: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.10:6443")}})
	if problems = claimExternal(s, "192.0.2.10", 6443); s.FrontendAt(key) != nil || len(problems) != 1 {
		t.Errorf("of the configuration: problems %v", problems)
	}
	if claimExternal(s, "192.0.2.10", 443); s.FrontendAt(FrontendKey{AddrPort: netip.MustParseAddrPort("192.0.2.10:443"), Protocol: TCP}) == nil {
		t.Error("another port is not served")
	}
}

// claimExternal adds Service tenant/thief with an external IP, and returns the problems.
func claimExternal(s *State, ip string, port int32) []Problem {
	s.SetService(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: "thief"},
		Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.2", ExternalIPs: []string{ip}, Ports: []corev1.ServicePort{{Port: port}}},
	})
	return s.Full().Problems
}

// TestExternalIPOfOthers checks that an external IP that a Node or a pod has is programmed, as with kube-proxy,
// and that SECURITY.md says so.
func TestExternalIPOfOthers(t *testing.T) {
	for _, ip := range []string{"192.0.2.2", "10.244.2.7"} {
		s := New(Config{NodeName: "n1"})
		s.SetNode(&corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "n2"},
			Spec:       corev1.NodeSpec{PodCIDRs: []string{"10.244.2.0/24"}},
			Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.2"}}},
		})
		claimExternal(s, ip, 80)
		if s.FrontendAt(FrontendKey{AddrPort: netip.AddrPortFrom(netip.MustParseAddr(ip), 80), Protocol: TCP}) == nil {
			t.Errorf("%s: it has no frontend", ip)
		}
	}
	text, err := os.ReadFile("../../SECURITY.md")
	if err != nil || !strings.Contains(string(text), "are not checked against the addresses of nodes, pods") || !strings.Contains(string(text), "CVE-2020-8554") {
		t.Errorf("SECURITY.md does not say it: %v", err)
	}
}

// TestExternalIPRanges has external IPs count in a range only. Others are reported, and addresses of load
// balancers count everywhere.
func TestExternalIPRanges(t *testing.T) {
	s := New(Config{ExternalIPs: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/28"), netip.MustParsePrefix("2001:db8::/64")}})
	s.SetService(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: "x"},
		Spec: corev1.ServiceSpec{
			ClusterIPs: []string{"10.96.0.2", "fd00:96::2"}, Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: 80}},
			ExternalIPs: []string{"192.0.2.15", "192.0.2.16", "2001:db8::1", "fd00::1"},
		},
		Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: "198.51.100.1"}}}},
	})
	problems := s.Full().Problems
	for ip, want := range map[string]bool{"192.0.2.15": true, "192.0.2.16": false, "2001:db8::1": true, "fd00::1": false, "198.51.100.1": true} {
		if f := s.FrontendAt(FrontendKey{AddrPort: netip.AddrPortFrom(netip.MustParseAddr(ip), 80), Protocol: TCP}); (f != nil) != want {
			t.Errorf("%s: %+v", ip, f)
		}
	}
	if len(problems) != 2 || problems[0].Field != "spec.externalIPs[1]" || problems[1].Field != "spec.externalIPs[3]" {
		t.Errorf("problems %v", problems)
	}
}

// TestListedOften has slices list one endpoint 65,536 times: it stays an endpoint.
func TestListedOften(t *testing.T) {
	s := New(Config{NodeName: "n1"})
	s.SetService(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.1", Ports: []corev1.ServicePort{{Port: 80}}},
	})
	for i := range 64 {
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("web-", i), Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
			AddressType: discoveryv1.AddressTypeIPv4,
			Ports:       []discoveryv1.EndpointPort{{Port: ptr.To[int32](8080)}},
		}
		for range 1024 {
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{"10.244.0.1"}})
		}
		s.SetEndpointSlice(slice)
	}
	s.Full()
	s.ViewServices(nil, false, func(v *ServiceView) {
		if n := v.Ports[0].Pools[0].Backends; n != 1 {
			t.Errorf("the pool has %d backends", n)
		}
	})
}
