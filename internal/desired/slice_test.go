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

// TestSliceChanged checks when SetEndpointSlice and DeleteEndpointSlice report a change.
func TestSliceChanged(t *testing.T) {
	s := New(Config{NodeName: "here"})
	sl := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: "web", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Port: ptr.To[int32](8080)}},
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.244.1.1"}}},
	}
	set := func(what string, want bool) {
		t.Helper()
		if got := s.SetEndpointSlice(sl); got != want {
			t.Errorf("%s: changed is %t", what, got)
		}
	}
	set("new", true)
	set("the same", false)
	sl.Annotations = map[string]string{"any": "thing"}
	set("an annotation", false)
	sl.Endpoints[0].Conditions.Ready = ptr.To(false)
	set("a condition", true)
	sl.Endpoints[0].Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "a"}}}
	set("a hint", true)
	sl.Endpoints[0].Hints.ForZones[0].Name = "b"
	set("another zone", true)
	sl.Ports[0].Port = ptr.To[int32](8081)
	set("a port", true)
	sl.Labels[corev1.IsHeadlessService] = ""
	set("headless", true)
	set("still headless", false)
	if s.DeleteEndpointSlice("default", "web") {
		t.Error("the deletion of an ignored slice is reported as a change")
	}
}

// TestAddressTwice checks a slice with a duplicate address, which the API allows. It is
// one endpoint, which is removed with the slice.
func TestAddressTwice(t *testing.T) {
	for _, others := range []int{0, 100} {
		s := New(Config{})
		s.SetService(&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
			Spec:       corev1.ServiceSpec{ClusterIPs: []string{"10.96.0.1"}, Ports: []corev1.ServicePort{{Port: 80}}},
		})
		set := func(ips ...string) {
			sl := &discoveryv1.EndpointSlice{
				ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: "web", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
				AddressType: discoveryv1.AddressTypeIPv4,
				Ports:       []discoveryv1.EndpointPort{{Port: ptr.To[int32](8080)}},
			}
			for i := range others {
				ips = append(ips, fmt.Sprintf("10.244.2.%d", i))
			}
			for _, ip := range ips {
				sl.Endpoints = append(sl.Endpoints, discoveryv1.Endpoint{Addresses: []string{ip}})
			}
			s.SetEndpointSlice(sl)
		}
		const a, b, c = "10.244.1.1", "10.244.1.2", "10.244.1.3"
		set(a, b, a)
		if c := s.Change(); len(c.Pools) != 1 || len(c.Pools[0].Added) != 2+others {
			t.Errorf("%d others: %+v", others, c.Pools)
		}
		set(b, a, c)
		s.Change()
		s.DeleteEndpointSlice("default", "web")
		if c := s.Change(); len(c.Pools) != 1 || len(c.Pools[0].Removed) != 3+others {
			t.Errorf("%d others, after deletion: %+v", others, c.Pools)
		}
	}
}

// TestUnusableAddresses checks addresses that would capture the node's own traffic.
// Current API servers reject them.
func TestUnusableAddresses(t *testing.T) {
	s := New(Config{})
	s.SetService(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec:       corev1.ServiceSpec{ClusterIPs: []string{"127.0.0.1", "fd00::1"}, Ports: []corev1.ServicePort{{Port: 80}}},
	})
	sl := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv6,
		Ports:       []discoveryv1.EndpointPort{{Port: ptr.To[int32](8080)}},
	}
	for _, ip := range []string{"fd00::2", "::1", "::", "ff02::1", "fe80::1", "10.0.0.1", "web"} {
		sl.Endpoints = append(sl.Endpoints, discoveryv1.Endpoint{Addresses: []string{ip}})
	}
	s.SetEndpointSlice(sl)
	c := s.Change()
	if len(c.Frontends) != 1 || c.Frontends[0].Key().Addr().String() != "fd00::1" || len(c.Pools) != 1 || len(c.Pools[0].Added) != 1 {
		t.Errorf("change %+v", c)
	}
	var got []string
	for _, p := range c.Problems {
		got = append(got, p.Error())
	}
	want := []string{
		"Service default/web: spec.clusterIPs[0]: an address that no Service can have: 127.0.0.1",
		"EndpointSlice default/web-1: endpoints[1].addresses[0]: not an IPv6 address that packets can be sent to (6 such endpoints are ignored): ::1",
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("problems %q, want %q", got, want)
	}
}
