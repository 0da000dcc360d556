// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// TestWithout checks that nothing is programmed for a family in Config.Without.
func TestWithout(t *testing.T) {
	objects := func(c Config) *State {
		s := New(c)
		s.SetNodeAddresses([]netip.Addr{netip.MustParseAddr("192.168.0.1"), netip.MustParseAddr("fd00::1")})
		s.SetServiceCIDR(&networkingv1.ServiceCIDR{Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/16", "fd96::/112"}}})
		web := metav1.ObjectMeta{Namespace: "default", Name: "web"}
		s.SetService(&corev1.Service{ObjectMeta: web, Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeNodePort, ClusterIPs: []string{"10.96.0.10", "fd96::10"}, ExternalIPs: []string{"192.0.2.1", "2001:db8::1"},
			Ports: []corev1.ServicePort{{Port: 80, NodePort: 30080}},
		}})
		for name, ip := range map[string]string{"only-4": "10.96.0.11", "only-6": "fd96::11"} {
			s.SetService(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: corev1.ServiceSpec{
				Type: corev1.ServiceTypeLoadBalancer, ClusterIPs: []string{ip}, ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal,
				HealthCheckNodePort: map[string]int32{"only-4": 32004, "only-6": 32006}[name],
			}})
		}
		for name, address := range map[string]string{"IPv4": "10.244.0.1", "IPv6": "fd44::1"} {
			s.SetEndpointSlice(&discoveryv1.EndpointSlice{
				ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: "web-" + name, Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
				AddressType: discoveryv1.AddressType(name),
				Ports:       []discoveryv1.EndpointPort{{Port: ptr.To(int32(8080))}},
				Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{address}}},
			})
		}
		return s
	}
	both := objects(Config{}).Full()
	for _, f := range []Family{IPv4, IPv6} {
		var c Config
		c.Without[f] = true
		s := objects(c)
		full := s.Full()
		other := 1 - f
		for _, frontend := range full.Frontends {
			if FamilyOf(frontend.Key().Addr()) == f {
				t.Errorf("without %s: frontend %s", f, frontend.Key())
			}
		}
		for _, p := range full.Pools {
			if p.Family == f {
				t.Errorf("without %s: a pool of %s", f, p.Service)
			}
		}
		for i, all := range [][]Member{full.Sets[ClusterIPs].Added, full.Sets[HairpinIPs].Added, full.Sets[NodeAddresses].Added} {
			if len(all) != []int{2, 1, 1}[i] || slices.ContainsFunc(all, func(m Member) bool { return m.Family() == f }) {
				t.Errorf("without %s: %v", f, all)
			}
		}
		if all := full.Sets[HealthPorts].Added; len(all) != 1 || all[0] != PortOf(other, TCP, map[Family]uint16{IPv4: 32004, IPv6: 32006}[other]) {
			t.Errorf("without %s: health ports %v", f, all)
		}
		if all := full.Sets[ServiceCIDRs].Added; len(all) != 1 || all[0].Family() != other {
			t.Errorf("without %s: %v", f, all)
		}
		if n := len(full.Frontends); n != 3 || 2*n != len(both.Frontends) || len(full.Pools) != 1 || len(both.Pools) != 2 {
			t.Errorf("without %s: %d frontends, %d pools; with both: %d, %d", f, n, len(full.Pools), len(both.Frontends), len(both.Pools))
		}
		if len(full.Problems) > 0 {
			t.Errorf("without %s: %v", f, full.Problems)
		}
	}
}
