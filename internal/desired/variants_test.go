// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// TestManySourceRanges: each frontend of a load balancer has all source ranges, so that they count as elements.
func TestManySourceRanges(t *testing.T) {
	s := New(Config{NamespaceElements: 10000})
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "x"},
		Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.1", Type: corev1.ServiceTypeLoadBalancer},
		Status:     corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}}},
	}
	for i := range 100 {
		svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", i), Port: int32(i + 1)})
	}
	for i := range 1000 {
		svc.Spec.LoadBalancerSourceRanges = append(svc.Spec.LoadBalancerSourceRanges, fmt.Sprintf("10.%d.%d.0/24", 2*i>>8, 2*i&255))
	}
	s.SetService(svc)
	if u := s.Change(); len(u.Frontends) != 0 || len(u.Problems) != 1 {
		t.Errorf("%d frontends with 1,000 source ranges each, problems %v", len(u.Frontends), u.Problems)
	}
	svc.Spec.LoadBalancerSourceRanges = svc.Spec.LoadBalancerSourceRanges[:50]
	s.SetService(svc)
	if u := s.Change(); len(u.Frontends) != 200 || len(u.Problems) != 0 {
		t.Errorf("%d frontends with 50 source ranges, problems %v", len(u.Frontends), u.Problems)
	}
}

// TestManyContests: of what a Service claims in vain, a change reports the first few, each of which is a line of the log.
func TestManyContests(t *testing.T) {
	s := New(Config{})
	for _, name := range []string{"b", "c", "a", "d"} { // the third takes all from the first
		svc := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: name},
			Spec:       corev1.ServiceSpec{ClusterIP: fmt.Sprint("10.96.0.", len(s.services)+1), ExternalIPs: []string{"192.0.2.1"}},
		}
		for i := range 1000 {
			svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", i), Port: int32(i + 1)})
		}
		s.SetService(svc)
		want := mostProblems
		if name == "b" {
			want = 0
		}
		if n := len(s.Change().Problems); n != want {
			t.Errorf("%s: %d problems", name, n)
		}
	}
}

// TestLongZones: names that no Node's zone can have do not fill the memory.
func TestLongZones(t *testing.T) {
	s, long := New(Config{}), strings.Repeat("z", 1<<20)
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "x", Name: "x", Labels: map[string]string{discoveryv1.LabelServiceName: "x"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{
			Addresses: []string{"10.244.0.1"}, Zone: ptr.To(long), Hints: &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: long}}},
		}},
	}
	s.SetEndpointSlice(slice)
	for _, sl := range s.slices {
		if z := sl.zones.get(sl.endpoints[0].zones); len(z.own) > 64 || len(z.hints[0]) > 64 {
			t.Errorf("a zone of %d bytes, a hint of %d", len(z.own), len(z.hints[0]))
		}
	}
	if s.SetEndpointSlice(slice) {
		t.Error("the same slice is another one")
	}
}
