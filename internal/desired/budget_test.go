// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"fmt"
	"math"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// demand is a Service with many slots: ports and endpoints, those with odd numbers of other weight.
type demand struct {
	ports, endpoints int
	annotations      map[string]string // of the Service
	weight           string
	dual             bool
	spec             corev1.ServiceSpec
}

func (d demand) set(s *State) {
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", Annotations: d.annotations}, Spec: d.spec}
	svc.Spec.ClusterIPs = []string{"10.96.0.1"}
	if d.dual {
		svc.Spec.ClusterIPs = append(svc.Spec.ClusterIPs, "fd00:96::1")
	}
	var ports []discoveryv1.EndpointPort
	for i := range d.ports {
		name := fmt.Sprint("p", i)
		svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: name, Port: int32(1000 + i), NodePort: int32(30000 + i)})
		ports = append(ports, discoveryv1.EndpointPort{Name: &name, Port: ptr.To(int32(1000 + i))})
	}
	s.SetService(svc)
	for family, text := range map[discoveryv1.AddressType]string{discoveryv1.AddressTypeIPv4: "10.0.%d.%d", discoveryv1.AddressTypeIPv6: "fd00::%x:%x"} {
		for odd := range 2 {
			slice := &discoveryv1.EndpointSlice{
				ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint(family, odd), Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
				AddressType: family,
				Ports:       ports,
			}
			if odd == 1 && d.weight != "" {
				slice.Annotations = map[string]string{AnnotationWeight: d.weight}
			}
			for i := odd; i < d.endpoints; i += 2 {
				slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
					Addresses: []string{fmt.Sprintf(text, i/256, i%256)}, NodeName: ptr.To("other"), Zone: ptr.To(fmt.Sprint("zone-", i%4/2)),
				})
			}
			s.SetEndpointSlice(slice)
		}
	}
}

var maglev, both = map[string]string{AnnotationScheduler: "maglev"}, corev1.ServiceSpec{
	Type: corev1.ServiceTypeLoadBalancer, ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal,
}

// TestBudget: a Service whose algorithm or weights need more than MaxSlots is chosen at random, with one
// Problem, on every node; other Services are not.
func TestBudget(t *testing.T) {
	lc := map[string]string{AnnotationScheduler: "lc"}
	zones := map[string]string{AnnotationLocalZone: "81"}
	for name, c := range map[string]struct {
		demand
		over bool
	}{
		"Maglev, 60 ports":                    {demand{60, 120, maglev, "", false, corev1.ServiceSpec{}}, true},
		"Maglev, 400 ports":                   {demand{400, 2, maglev, "", false, corev1.ServiceSpec{}}, true},
		"Maglev, families and scopes":         {demand{9, 120, maglev, "", true, both}, true},
		"weights, 60 ports":                   {demand{60, 400, nil, "37", false, corev1.ServiceSpec{}}, true},
		"round robin with weights, 60 ports":  {demand{60, 400, map[string]string{AnnotationScheduler: "rr"}, "37", false, corev1.ServiceSpec{}}, true},
		"zones, 60 ports":                     {demand{60, 400, zones, "", false, corev1.ServiceSpec{}}, true},
		"least connections, 1,000 endpoints":  {demand{100, 1000, lc, "", false, corev1.ServiceSpec{}}, false},
		"Maglev, 1,000 ports, one endpoint":   {demand{1000, 1, maglev, "", true, both}, false},
		"Maglev, honest":                      {demand{2, 300, maglev, "", true, both}, false},
		"weights, honest":                     {demand{3, 1000, nil, "10", true, both}, false},
		"least connections, 600 ports":        {demand{600, 100, lc, "", false, corev1.ServiceSpec{}}, true},
		"least connections, honest":           {demand{3, 1000, lc, "", true, both}, false},
		"round robin, 600 ports":              {demand{600, 900, map[string]string{AnnotationScheduler: "rr"}, "", false, corev1.ServiceSpec{}}, false},
		"weights with a divisor, 1,000 ports": {demand{1000, 10, nil, "50", true, corev1.ServiceSpec{}}, false},
	} {
		for _, node := range []string{"n1", "other"} {
			s := New(Config{NodeName: node, Loads: &given{}, NamespaceElements: 1 << 20})
			s.SetNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node, Labels: map[string]string{corev1.LabelTopologyZone: "zone-1"}}})
			c.set(s)
			u := s.Full()
			if got := len(u.Problems); got != map[bool]int{true: 1}[c.over] {
				t.Errorf("%s, node %s: %d problems: %v", name, node, got, u.Problems)
			} else if got > 0 && (u.Problems[0].Service.Name != "web" || u.Problems[0].Field != "spec.ports") {
				t.Errorf("%s: %v", name, u.Problems)
			}
			for _, p := range u.Pools {
				if special := p.Algorithm != Random || len(p.Weights) > 0; special && c.over {
					t.Fatalf("%s: %s with %d weights, although the Service needs too many slots", name, p.Algorithm, len(p.Weights))
				}
				if p.Algorithm.Hashes() && (p.TableSize == 1) != (len(p.Added) <= 1) {
					t.Fatalf("%s: a table of %d for %d endpoints", name, p.TableSize, len(p.Added))
				}
			}
		}
	}
}

// TestTablesOfPorts: each port has a table of its own, as a slot has the port of the endpoint, too. What bounds them is MaxSlots.
func TestTablesOfPorts(t *testing.T) {
	for ports, slots := range map[int]int{1: 4093, 2: 2 * 4093, 30: 30 * 4093, 128: 128 * 4093, 129: 0, 1000: 0} {
		s, sum := New(Config{NodeName: "n1"}), 0
		demand{ports, 10, maglev, "", false, corev1.ServiceSpec{}}.set(s)
		for _, p := range s.Full().Pools {
			sum += int(p.TableSize)
		}
		if sum != slots || sum > MaxSlots {
			t.Errorf("%d ports with 10 endpoints have %d slots", ports, sum)
		}
	}
}

// TestBudgetChanges: a Service loses its tables when it grows over the budget, and gets them back, by
// its ports, endpoints and algorithm. Nothing is left of a Service that is deleted.
func TestBudgetChanges(t *testing.T) {
	s := New(Config{NodeName: "n1", NamespaceChange: math.MaxInt})
	step := func(what string, d demand, want Algorithm, problems int) {
		t.Helper()
		d.set(s)
		u := s.Change()
		if len(u.Problems) != problems {
			t.Errorf("%s: %v", what, u.Problems)
		}
		for _, p := range s.Reported().Pools {
			if p.Algorithm != want {
				t.Fatalf("%s: %s, want %s", what, p.Algorithm, want)
			}
		}
		s.ViewServices(nil, false, func(v *ServiceView) {
			if got := v.Ports[0].Pools[0].Algorithm; got != want.String() {
				t.Errorf("%s: shown as %s", what, got)
			}
		})
	}
	few, many := demand{ports: 40, endpoints: 10, annotations: maglev}, demand{ports: 40, endpoints: 20, annotations: maglev}
	step("few endpoints", few, Maglev, 0)
	step("many endpoints", many, Random, 1)
	step("the same", many, Random, 0)
	step("few endpoints again", few, Maglev, 0)
	step("many ports", demand{ports: 160, endpoints: 10, annotations: maglev}, Random, 1)
	step("random", demand{ports: 160, endpoints: 10}, Random, 0)
	step("many ports again", demand{ports: 160, endpoints: 10, annotations: maglev}, Random, 1)
	step("few ports", few, Maglev, 0)
	svc := s.services[s.pools[0].of.port.service.name]
	s.DeleteService("default", "web")
	s.Change()
	if svc.slots != 0 {
		t.Errorf("a deleted Service has %d slots", svc.slots)
	}
}
