// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"fmt"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// TestNodePortOverridden has another address and a NodePort of two Services meet at an address of
// the node: what is reported, and which flows of UDP are stale. A load balancer IP goes before the NodePort, an
// external IP after it.
func TestNodePortOverridden(t *testing.T) {
	for _, kind := range []AddressKind{LoadBalancerIP, ExternalIP} {
		t.Run(kind.String(), func(t *testing.T) { testNodePortBeside(t, kind) })
	}
}

func testNodePortBeside(t *testing.T, kind AddressKind) {
	s := New(Config{NodeName: "n1"})
	slice := func(service, ip string) {
		s.SetEndpointSlice(&discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: service, Labels: map[string]string{discoveryv1.LabelServiceName: service}},
			AddressType: discoveryv1.AddressTypeIPv4,
			Ports:       []discoveryv1.EndpointPort{{Port: ptr.To[int32](53), Protocol: ptr.To(corev1.ProtocolUDP)}},
			Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{ip}}},
		})
	}
	external := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "external"},
		Spec: corev1.ServiceSpec{
			ClusterIP: "10.96.0.1", Ports: []corev1.ServicePort{{Port: 30053, Protocol: corev1.ProtocolUDP}},
		},
	}
	if external.Spec.ExternalIPs = []string{"192.0.2.1"}; kind == LoadBalancerIP {
		external.Spec.ExternalIPs = nil
		external.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}
	}
	port := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "port"},
		Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.2", Ports: []corev1.ServicePort{{Port: 53, NodePort: 30053, Protocol: corev1.ProtocolUDP}}},
	}
	addresses := func(all ...string) {
		var addrs []netip.Addr
		for _, a := range all {
			addrs = append(addrs, netip.MustParseAddr(a))
		}
		s.SetNodeAddresses(addrs)
	}
	s.SetService(external)
	s.SetService(port)
	slice("external", "10.0.0.1")
	slice("port", "10.0.0.2")
	s.Full()
	const overridden = "problem 192.0.2.1:30053/UDP belongs to Service default/external as its load balancer IP; "
	const kept = "problem 192.0.2.1:30053/UDP belongs to Service default/port as its NodePort; "
	for _, step := range []struct {
		what      string
		do        func()
		balancer  string
		external  string
		contested int
	}{
		{"the address is not the node's", func() { addresses("192.0.2.2") },
			"flows of [192.0.2.2:30053/UDP] only to 10.0.0.2:53",
			"flows of [192.0.2.2:30053/UDP] only to 10.0.0.2:53", 0},
		{"it is", func() { addresses("192.0.2.1", "192.0.2.2") },
			overridden,
			kept + "flows of [192.0.2.1:30053/UDP] only to 10.0.0.2:53", 1},
		{"the same again", func() { s.SetService(external); s.SetService(port) }, "", "", 1},
		{"another endpoint", func() { slice("port", "10.0.0.3") },
			"flows of [10.96.0.2:53/UDP 192.0.2.2:30053/UDP] to 10.0.0.2:53",
			"flows of [10.96.0.2:53/UDP 192.0.2.1:30053/UDP 192.0.2.2:30053/UDP] to 10.0.0.2:53", 1},
		{"the other Service is deleted", func() { s.DeleteService("default", "external") },
			"flows of [192.0.2.1:30053/UDP] only to 10.0.0.3:53; flows of [10.96.0.1:30053/UDP] only to 10.96.0.1:30053",
			"flows of [10.96.0.1:30053/UDP] only to 10.96.0.1:30053", 0},
		{"it is back", func() { s.SetService(external) },
			overridden + "flows of [10.96.0.1:30053/UDP 192.0.2.1:30053/UDP] only to 10.0.0.1:53",
			kept + "flows of [10.96.0.1:30053/UDP] only to 10.0.0.1:53", 1},
		{"the address is removed", func() { addresses("192.0.2.2") },
			"",
			"flows of [192.0.2.1:30053/UDP] only to 10.0.0.1:53", 0},
		{"an address of the NodePort is removed", func() { addresses() },
			"flows of [192.0.2.2:30053/UDP] only to 192.0.2.2:30053",
			"flows of [192.0.2.2:30053/UDP] only to 192.0.2.2:30053", 0},
	} {
		want, loser := step.balancer, "port"
		if kind == ExternalIP {
			want, loser = step.external, "external"
		}
		step.do()
		u, got := s.Change(), ""
		add := func(format string, args ...any) {
			if got != "" && got[len(got)-1] != ' ' {
				got += "; "
			}
			got += fmt.Sprintf(format, args...)
		}
		for _, p := range u.Problems {
			add("problem %s; ", p.Reason)
		}
		for _, f := range u.Flows {
			only := map[bool]string{true: "only "}[f.Only]
			add("flows of %s %sto %s", f.Frontends, only, f.Backends[0])
		}
		if contested, _ := s.Contested(); got != want || contested[types.NamespacedName{Namespace: "default", Name: loser}] != step.contested || len(contested) > 1 {
			t.Errorf("%s: %q, contested %v; want %q and %d", step.what, got, contested, want, step.contested)
		}
	}
}
