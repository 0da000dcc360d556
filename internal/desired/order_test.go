// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestFullTwice: the first full description has backends in the same order as the next, or a repair would write all of a
// pool's rules anew.
func TestFullTwice(t *testing.T) {
	s := New(Config{NodeName: "n1"})
	s.SetService(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"},
		Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.1", Ports: []corev1.ServicePort{{Port: 80}}},
	})
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "ns", Name: "web", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: new(int32(8080))}},
	}
	for _, a := range []string{"10.0.0.3", "10.0.0.1", "10.0.0.2"} {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}})
	}
	s.SetEndpointSlice(slice)
	first, second := s.Full().Pools, s.Full().Pools
	if len(first) != 1 || len(second) != 1 || len(first[0].Added) != 3 || !slices.Equal(first[0].Added, second[0].Added) {
		t.Errorf("first %v, then %v", first, second)
	}
}
