// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// TestOldNotations: objects of before strict addresses (KEP-4858), with leading zeros and IPv4-mapped
// addresses, mean the same as those with the usual notation, and contest frontends and share endpoints with
// these.
func TestOldNotations(t *testing.T) {
	usual := func(text string) string { return text }
	content := func(notations ...func(string) string) string {
		s := New(Config{NodeName: "n1", IPVS: true})
		s.SetNodeAddresses([]netip.Addr{netip.MustParseAddr("192.0.2.1")})
		for i, old := range notations {
			name := []string{"web", "younger"}[i]
			s.SetService(&corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
				Spec: corev1.ServiceSpec{
					Type: corev1.ServiceTypeLoadBalancer, ClusterIP: old("10.96.0.1"), ClusterIPs: []string{old("10.96.0.1")},
					ExternalIPs: []string{old("198.51.100.7")}, LoadBalancerSourceRanges: []string{old("203.0.113.0") + "/" + bits(old)},
					Ports: []corev1.ServicePort{{Port: 53, Protocol: corev1.ProtocolUDP, NodePort: 30053}},
				},
				Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: old("198.51.100.8")}}}},
			})
			s.SetEndpointSlice(&discoveryv1.EndpointSlice{
				ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
				AddressType: discoveryv1.AddressTypeIPv4,
				Ports:       []discoveryv1.EndpointPort{{Port: ptr.To[int32](53), Protocol: ptr.To(corev1.ProtocolUDP)}},
				Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{old("10.244.1.7")}}},
			})
			s.SetServiceCIDR(&networkingv1.ServiceCIDR{
				ObjectMeta: metav1.ObjectMeta{Name: name},
				Spec:       networkingv1.ServiceCIDRSpec{CIDRs: []string{old("10.96.0.0") + "/" + bits(old)}},
			})
		}
		kernel := newModel()
		if err := kernel.apply(s.Full()); err != nil {
			t.Fatal(err)
		}
		return kernel.String()
	}
	want := map[int]string{1: content(usual), 2: content(usual, usual)}
	if n := strings.Count(want[1], "default/web"); n < 4 || !strings.Contains(want[1], "10.244.1.7") || !strings.Contains(want[1], "203.0.113.0/24") {
		t.Fatalf("the usual notation:\n%s", want[1])
	}
	for _, c := range [][]func(string) string{{zeros}, {mapped}, {zeros, usual}, {usual, zeros}, {mapped, usual}, {usual, mapped}, {zeros, mapped}} {
		if got := content(c...); got != want[len(c)] {
			t.Errorf("content:\n%s\n\nwant that of the usual notation:\n%s", got, want[len(c)])
		}
	}
}

// zeros and mapped return an IPv4 address in an old notation.
func zeros(text string) string  { return "0" + strings.ReplaceAll(text, ".", ".0") }
func mapped(text string) string { return "::ffff:" + text }

// bits is the length of an IPv4 range of 24 bits in a notation.
func bits(notation func(string) string) string {
	if strings.Contains(notation("1.2.3.4"), ":") {
		return "120"
	}
	return "24"
}
