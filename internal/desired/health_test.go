// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// TestHealthCounts checks the count for load balancers: addresses of ready endpoints on
// this node, in slices with a port.
func TestHealthCounts(t *testing.T) {
	s := New(Config{NodeName: "here"})
	s.SetService(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, ClusterIPs: []string{"10.96.0.1"}, Ports: []corev1.ServicePort{{Port: 80}},
			ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal, HealthCheckNodePort: 30000,
		},
	})
	slice := func(name string, ports []discoveryv1.EndpointPort, endpoints ...discoveryv1.Endpoint) {
		s.SetEndpointSlice(&discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
			AddressType: discoveryv1.AddressTypeIPv4, Ports: ports, Endpoints: endpoints,
		})
	}
	at := func(ip, node string) discoveryv1.Endpoint {
		return discoveryv1.Endpoint{Addresses: []string{ip}, NodeName: &node}
	}
	notReady := at("10.0.0.9", "here")
	notReady.Conditions.Ready = ptr.To(false)
	port := []discoveryv1.EndpointPort{{Port: ptr.To[int32](8080)}}
	needs := func(want bool, pod ...string) {
		t.Helper()
		var addresses []netip.Addr
		for _, a := range pod {
			addresses = append(addresses, netip.MustParseAddr(a))
		}
		if got := s.HealthNeeds(addresses); got != want {
			t.Errorf("the health check needs %s: %v", pod, got)
		}
	}
	want := func(n int) {
		t.Helper()
		c := s.Change()
		if len(c.Health) != 1 || c.Health[0].Port != 30000 || c.Health[0].LocalEndpoints[IPv4] != n {
			t.Errorf("health checks %+v, want %d local endpoints", c.Health, n)
		}
	}
	want(0)
	needs(false, "10.0.0.1")
	slice("a", port, at("10.0.0.2", "there"), notReady)
	needs(true, "10.0.0.9", "fd00::9") // it was ready until now
	needs(false, "10.0.0.2")
	slice("a", port, at("10.0.0.1", "here"), at("10.0.0.2", "there"), notReady)
	want(1)
	needs(true, "fd00::1", "10.0.0.1")
	needs(false, "10.0.0.2")
	needs(false, "10.0.0.9")
	needs(false)
	slice("b", port, at("10.0.0.1", "here"), at("10.0.0.3", "here"))
	want(2)
	needs(false, "10.0.0.1")
	slice("b", nil, at("10.0.0.1", "here"), at("10.0.0.3", "here"), at("10.0.0.4", "here"))
	want(1)
	slice("b", port, at("10.0.0.4", "here"))
	want(2)
	slice("a", nil)
	want(1)
}
