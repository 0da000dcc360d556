// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestNodePortElsewhere asks about a NodePort at addresses of the node that serve it and that do not,
// with one frontend for all addresses and with one for each.
func TestNodePortElsewhere(t *testing.T) {
	for _, byAddress := range []bool{false, true} {
		s := New(Config{NodeName: "n1", IPVS: byAddress, NodePorts: NodePortAddresses{CIDRs: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}})
		s.SetNodeAddresses([]netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("127.0.0.1")})
		s.SetService(&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
			Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.1", Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Port: 80, NodePort: 30080}}},
		})
		s.Full()
		at := func(a string) FrontendKey {
			return FrontendKey{AddrPort: netip.AddrPortFrom(netip.MustParseAddr(a), 30080), Protocol: TCP}
		}
		serves := at("192.0.2.1")
		f := s.FrontendAt(serves)
		if f == nil || !slices.Equal(s.Destinations(f.FrontendKey), []FrontendKey{serves}) {
			t.Fatalf("by address %v: %s is served by %+v", byAddress, serves, f)
		}
		for a, want := range map[string]None{"198.51.100.1": NotServing, "127.0.0.1": NotServing, "203.0.113.1": NotOurs} {
			d := s.Decide(Origin{Class: FromNode}, at(a))
			if s.FrontendAt(at(a)) != nil || d.Frontend != nil || d.None != want {
				t.Errorf("by address %v: the decision about %s is %q", byAddress, a, d)
			}
			if want == NotServing && (d.Service.Name != "web" || !slices.Equal(d.ServedAt, []netip.Addr{serves.Addr()})) {
				t.Errorf("by address %v: %s is said to be served at %v", byAddress, d.Service, d.ServedAt)
			}
			if want == NotOurs && d.Service.Name != "web" {
				t.Errorf("by address %v: the NodePort of another node is said to be that of %q", byAddress, d.Service)
			}
		}
		s.SetNodeAddresses([]netip.Addr{netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("127.0.0.1")})
		s.Change()
		for _, a := range []string{"198.51.100.1", "127.0.0.1"} {
			if d := s.Decide(Origin{Class: FromNode}, at(a)); d.None != NotServing || d.Service.Name != "web" || len(d.ServedAt) > 0 {
				t.Errorf("by address %v: on a node without an address for NodePorts, the decision about %s is %q of %q at %v", byAddress, a, d, d.Service, d.ServedAt)
			}
		}
	}
}

// TestNodePortOfTwo: of two Services with one NodePort, the one that has it is named at an address that does not serve it.
func TestNodePortOfTwo(t *testing.T) {
	s := New(Config{NodeName: "n1", NodePorts: NodePortAddresses{CIDRs: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}})
	s.SetNodeAddresses([]netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("198.51.100.1")})
	for i, name := range []string{"second", "third", "first"} {
		s.SetService(&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, CreationTimestamp: metav1.Unix(int64([]int{2, 3, 1}[i]), 0)},
			Spec: corev1.ServiceSpec{
				ClusterIP: []string{"10.96.0.1", "10.96.0.2", "10.96.0.3"}[i], Ports: []corev1.ServicePort{{Port: 80, NodePort: 30080}},
			},
		})
	}
	s.Full()
	for range 20 { // it was one by chance
		to := FrontendKey{AddrPort: netip.MustParseAddrPort("198.51.100.1:30080"), Protocol: TCP}
		if d := s.Decide(Origin{Class: FromNode}, to); d.None != NotServing || d.Service.Name != "first" {
			t.Fatalf("the decision is %q of %s", d, d.Service)
		}
	}
}

// TestDecideAsTheKernelDoes: destinations and origins about which the decision differed from what the
// kernel does.
func TestDecideAsTheKernelDoes(t *testing.T) {
	for _, byAddress := range []bool{false, true} {
		c := Config{NodeName: "n1", IPVS: byAddress, LoopbackNodePorts: [families]LoopbackNodePorts{LoopbackRefused, LoopbackRefused}}
		c.DetectLocal.CIDRs = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}
		s := New(c)
		node := netip.MustParseAddr("10.244.0.1") // of a bridge, in the range of pods
		s.SetNodeAddresses([]netip.Addr{node, netip.MustParseAddr("127.0.0.1")})
		s.SetService(&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
			Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.1", Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: 80, NodePort: 30080}}},
			Status:     corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: "192.0.2.10"}}}},
		})
		s.Full()
		other := map[bool]None{false: NotOurs, true: UnknownPort}[byAddress]
		for to, want := range map[string]None{"127.0.0.1:30080": NotOnLoopback, "127.0.0.1:30081": NotOurs, "192.0.2.10:81": other, "10.96.0.1:81": UnknownPort} {
			if d := s.Decide(Origin{Class: FromNode}, FrontendKey{AddrPort: netip.MustParseAddrPort(to), Protocol: TCP}); d.None != want {
				t.Errorf("by address %v: the decision about %s is %q", byAddress, to, d)
			}
		}
		if d := s.Decide(s.Origin(node, ""), FrontendKey{AddrPort: netip.MustParseAddrPort("10.96.0.1:80"), Protocol: TCP}); d.Masquerade != KeptPod {
			t.Errorf("by address %v: masquerading of a node's address in the range of pods is %v", byAddress, d.Masquerade)
		}
	}
}
