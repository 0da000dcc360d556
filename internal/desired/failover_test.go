// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// TestPassedFlows: flows that were passed on end once the node has an endpoint. Two nodes would otherwise pass their packets to
// each other. Flows to other nodes' endpoints, which clients on this node have, go on.
func TestPassedFlows(t *testing.T) {
	s := New(Config{NodeName: "here"})
	s.SetService(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "dns", Annotations: map[string]string{AnnotationFailover: "passthrough"}},
		Spec: corev1.ServiceSpec{
			ClusterIPs: []string{"10.96.0.1"}, ExternalIPs: []string{"192.0.2.1"}, ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal,
			Ports: []corev1.ServicePort{{Port: 53, Protocol: corev1.ProtocolUDP}},
		},
	})
	slice := func(name, node, address string) *discoveryv1.EndpointSlice {
		return &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: "dns"}},
			AddressType: discoveryv1.AddressTypeIPv4,
			Ports:       []discoveryv1.EndpointPort{{Port: ptr.To[int32](53), Protocol: ptr.To(corev1.ProtocolUDP)}},
			Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{address}, NodeName: &node}},
		}
	}
	s.SetEndpointSlice(slice("far", "elsewhere", "10.244.2.1"))
	s.Change()
	for _, step := range []struct {
		what string
		do   func()
		want string
	}{
		{"an endpoint here", func() { s.SetEndpointSlice(slice("near", "here", "10.244.1.1")) }, "[192.0.2.1:53/UDP] [10.244.2.1:53 10.244.1.1:53] only true;"},
		{"none here", func() { s.DeleteEndpointSlice("default", "near") }, "[10.96.0.1:53/UDP 192.0.2.1:53/UDP] [10.244.1.1:53] only false;"},
		{"another one elsewhere", func() { s.SetEndpointSlice(slice("third", "elsewhere", "10.244.2.2")) }, ""},
	} {
		step.do()
		got := ""
		for _, f := range s.Change().Flows {
			got += fmt.Sprintf("%s %s only %t;", f.Frontends, f.Backends, f.Only)
		}
		if got != step.want {
			t.Errorf("%s: %q, want %q", step.what, got, step.want)
		}
	}
}

// TestNoLimitsWhilePassing: a frontend whose connections are passed on has no limits. The others keep theirs.
func TestNoLimitsWhilePassing(t *testing.T) {
	s := New(Config{NodeName: "here"})
	s.SetService(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", Annotations: map[string]string{AnnotationFailover: "passthrough", AnnotationMaxConnections: "9"}},
		Spec: corev1.ServiceSpec{
			ClusterIPs: []string{"10.96.0.1"}, ExternalIPs: []string{"192.0.2.1"}, ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal,
			Ports: []corev1.ServicePort{{Port: 80}},
		},
	})
	limited := func(external bool) {
		t.Helper()
		for _, c := range s.Change().Frontends {
			if want := external || c.New.Kind == ClusterIP; (c.New.Limits != Limits{}) != want {
				t.Errorf("%s: limits %q, want some: %t", c.New.FrontendKey, c.New.Limits, want)
			}
		}
	}
	limited(false)
	s.SetEndpointSlice(&discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: "web", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: ptr.To[int32](80)}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.244.1.1"}, NodeName: ptr.To("here")}},
	})
	limited(true)
}
