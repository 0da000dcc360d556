// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// TestNoLocalEndpoints counts Service ports whose traffic is dropped on this node.
// FuzzEvents compares counts after changes with fresh counts.
func TestNoLocalEndpoints(t *testing.T) {
	s := New(Config{NodeName: "here"})
	local := corev1.ServiceInternalTrafficPolicyLocal
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec: corev1.ServiceSpec{
			ClusterIPs: []string{"10.96.0.1", "fd00:96::1"}, ExternalIPs: []string{"192.0.2.1"},
			Ports: []corev1.ServicePort{{Name: "a", Port: 80}, {Name: "b", Port: 81}},
		},
	}
	slice := func(node string) *discoveryv1.EndpointSlice {
		return &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: "web", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
			AddressType: discoveryv1.AddressTypeIPv4,
			Ports:       []discoveryv1.EndpointPort{{Name: ptr.To("a"), Port: ptr.To[int32](8080)}, {Name: ptr.To("b"), Port: ptr.To[int32](8081)}},
			Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.244.1.1"}, NodeName: &node}},
		}
	}
	want := func(what string, internal, external int) {
		t.Helper()
		s.Change()
		if got, want := s.NoLocalEndpoints(), (NoLocalEndpoints{Internal: [families]int{internal}, External: [families]int{external}}); got != want {
			t.Errorf("%s: %+v, want %+v", what, got, want)
		}
	}
	s.SetService(svc)
	s.SetEndpointSlice(slice("elsewhere"))
	want("both policies are Cluster", 0, 0)
	svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	s.SetService(svc)
	want("two ports, external", 0, 2)
	svc.Spec.InternalTrafficPolicy = &local // the pools stay the same
	s.SetService(svc)
	want("and internal", 2, 2)
	svc.Spec.ExternalIPs = nil
	s.SetService(svc)
	want("not external any more", 2, 0)
	s.SetEndpointSlice(slice("here"))
	want("there is one here", 0, 0)
	s.SetEndpointSlice(slice("elsewhere"))
	want("and is not any more", 2, 0)
	s.DeleteEndpointSlice("default", "web")
	want("there is none at all", 0, 0)
	s.SetEndpointSlice(slice("elsewhere"))
	s.DeleteService("default", "web")
	want("the Service is gone", 0, 0)
}
