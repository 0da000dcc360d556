// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"fmt"
	"maps"
	"math"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// slowStarter is a State with a Service that has slow start. Its time passes second by second.
type slowStarter struct {
	*State
	*model
	now     time.Time
	changes int // of the pool, since the last reset
	t       *testing.T
}

func newSlowStarter(t *testing.T, config Config, annotations map[string]string) *slowStarter {
	config.NodeName = "n1"
	s := &slowStarter{State: New(config), model: newModel(), now: time.Unix(1e9, 0), t: t}
	s.SetNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{corev1.LabelTopologyZone: "a"}}})
	s.service(annotations)
	return s
}

func (s *slowStarter) service(annotations map[string]string) {
	s.SetService(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", Annotations: annotations},
		Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.1", Ports: []corev1.ServicePort{{Port: 80}}},
	})
}

// endpoint sets the slice of an endpoint.
func (s *slowStarter) endpoint(i int, zone, weight string, ready bool) {
	s.SetEndpointSlice(&discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: fmt.Sprint("web-", i), Labels: map[string]string{discoveryv1.LabelServiceName: "web"},
			Annotations: map[string]string{AnnotationWeight: weight},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Port: ptr.To[int32](8080)}},
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{fmt.Sprint("10.0.0.", i)}, Zone: &zone, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}},
	})
}

// pass lets seconds pass as the proxy does.
func (s *slowStarter) pass(seconds int) {
	for range seconds {
		s.now = s.now.Add(time.Second)
		if s.Advance(s.now) {
			s.program()
		}
	}
}

func (s *slowStarter) program() {
	s.t.Helper()
	s.Advance(s.now)
	u := s.Change()
	if err := s.apply(u); err != nil {
		s.t.Fatal(err)
	}
	s.changes += len(u.Pools)
}

// shares returns the shares of endpoints, in percent, by the last octet of their addresses.
func (s *slowStarter) shares() map[int]float64 {
	all, sum := map[int]float64{}, 0.0
	for _, p := range s.model.pools {
		for b := range p.backends {
			w := float64(DefaultWeight)
			if other, ok := p.weights[b]; ok {
				w = float64(other)
			}
			all[int(b.Addr().As4()[3])] = w
			sum += w
		}
	}
	for i := range all {
		all[i] *= 100 / sum
	}
	return all
}

func (s *slowStarter) want(what string, want map[int]float64) {
	s.t.Helper()
	got := s.shares()
	if !maps.EqualFunc(got, want, func(a, b float64) bool { return math.Abs(a-b) < 0.01 }) {
		s.t.Errorf("%s: shares %v, want %v", what, got, want)
	}
}

func of(weights ...float64) map[int]float64 {
	all, sum := map[int]float64{}, 0.0
	for _, w := range weights {
		sum += w
	}
	for i, w := range weights {
		all[1+i] = 100 * w / sum
	}
	return all
}

// TestSlowStart follows the shares of endpoints over time, with every kind of weight beside.
func TestSlowStart(t *testing.T) {
	const slow = "60s"
	t.Run("shares", func(t *testing.T) {
		s := newSlowStarter(t, Config{}, map[string]string{AnnotationSlowStart: slow, AnnotationScheduler: "maglev"})
		s.endpoint(1, "a", "", true)
		s.endpoint(2, "a", "", true)
		if err := s.apply(s.Full()); err != nil {
			t.Fatal(err)
		}
		if s.Warming() {
			t.Error("endpoints of the first list are warming")
		}
		s.pass(3600)
		s.changes = 0
		s.endpoint(3, "a", "", true)
		s.program()
		for second := range 61 {
			s.want(fmt.Sprint("after ", second, " s"), of(10, 10, []float64{1, 3, 5, 8, 10}[second/15]))
			s.pass(1)
		}
		if s.pass(3600); s.changes != 5 {
			t.Errorf("the table was written %d times, not 5", s.changes)
		}
		s.endpoint(3, "a", "", false)
		s.program()
		s.want("not ready", of(1, 1))
		s.endpoint(3, "a", "", true)
		s.program()
		s.want("ready again", of(10, 10, 1))
		s.endpoint(3, "b", "", true)
		s.pass(20)
		s.program()
		s.want("what else changes does not matter", of(10, 10, 3))
		s.service(map[string]string{})
		s.program()
		s.want("without the annotation", of(1, 1, 1))
		s.service(map[string]string{AnnotationSlowStart: slow})
		s.program()
		if s.want("with it again", of(1, 1, 1)); s.Warming() {
			t.Error("endpoints are warming")
		}
		s.endpoint(1, "a", "", false)
		s.endpoint(2, "a", "", false)
		s.endpoint(3, "a", "", false)
		s.program()
		s.endpoint(1, "a", "", true)
		s.program()
		s.want("alone", of(1))
		s.pass(20)
		s.endpoint(2, "a", "", true)
		s.program()
		s.want("one after the other", of(3, 1))
		s.DeleteService("default", "web")
		if s.program(); s.Warming() {
			t.Error("a deleted Service has endpoints that are warming")
		}
	})
	for _, c := range []struct {
		name       string
		annotation map[string]string
		config     Config
		zones      [3]string
		weights    [3]string
		want       map[int]float64 // with the third at a tenth
	}{
		{"weights", nil, Config{}, [3]string{"a", "a", "a"}, [3]string{"50", "7", "5"}, of(50, 7, 0.5)},
		// Half of the connections stay in the zone, 25 % for each endpoint there, and the new one gets a tenth of that.
		{"zone", map[string]string{AnnotationLocalZone: "50"}, Config{}, [3]string{"a", "b", "a"}, [3]string{}, of(25, 50, 2.5)},
		{"lc", map[string]string{AnnotationScheduler: "lc"}, Config{Loads: &given{loads: map[Backend]Load{}}}, [3]string{}, [3]string{}, of(10, 10, 1)},
		{"last in its zone", map[string]string{AnnotationScheduler: "nearest"}, Config{}, [3]string{"b", "b", "a"}, [3]string{}, map[int]float64{3: 100}},
		{"scheduler of the kernel", nil, Config{IPVS: true, Scheduler: func(value string, weighted bool) (string, error) { return fmt.Sprint("wrr", weighted), nil }},
			[3]string{}, [3]string{}, of(10, 10, 1)},
	} {
		t.Run(c.name, func(t *testing.T) {
			annotations := map[string]string{AnnotationSlowStart: slow}
			maps.Copy(annotations, c.annotation)
			s := newSlowStarter(t, c.config, annotations)
			s.endpoint(1, c.zones[0], c.weights[0], true)
			s.endpoint(2, c.zones[1], c.weights[1], true)
			s.Advance(s.now)
			if err := s.apply(s.Full()); err != nil {
				t.Fatal(err)
			}
			s.pass(3600)
			s.endpoint(3, c.zones[2], c.weights[2], true)
			s.program()
			s.want("one is new", c.want)
			for _, f := range s.model.frontends {
				if f.IPVS && f.Scheduler != "wrrtrue" {
					t.Errorf("the scheduler is %q, which heeds no weights", f.Scheduler)
				}
			}
		})
	}
}

// TestSlowStartValues reports values that are no times, names the Service and the annotation, and ignores them.
func TestSlowStartValues(t *testing.T) {
	for value, want := range map[string]time.Duration{
		"1s": time.Second, "1h": time.Hour, "1m30s": 90 * time.Second, "": 0,
		"0": -1, "60": -1, "999ms": -1, "61m": -1, "-5s": -1, "soon": -1, "9999999h": -1,
	} {
		s := newSlowStarter(t, Config{}, map[string]string{AnnotationSlowStart: value})
		got, problems := s.State.services[types.NamespacedName{Namespace: "default", Name: "web"}].spec.slowStart, s.Change().Problems
		if bad := want < 0; got != max(want, 0) || bad != (len(problems) == 1) {
			t.Errorf("%q: %s, problems %v", value, got, problems)
		}
		for _, p := range problems {
			if p.Object != "Service default/web" || p.Field != "metadata.annotations[slipstream.io/slow-start]" || p.Service.Name != "web" {
				t.Errorf("%q: %v", value, p)
			}
		}
	}
}

// TestSlowStartBudget: slots for slow start count, also while no endpoint is new, as all nodes decide alike.
func TestSlowStartBudget(t *testing.T) {
	const each = 2 * 2 * 10 // endpoints, families and tenths
	for slots, over := range map[int]int{2*each - 1: 1, 2 * each: 0} {
		s := New(Config{NamespaceSlots: slots})
		for i := range 2 {
			addService(s, "default", i, 1, 2, corev1.ServiceSpec{}, map[string]string{AnnotationSlowStart: "60s"}, "")
		}
		if u := s.Full(); len(u.Problems) != over {
			t.Errorf("%d slots: problems %v, want %d", slots, u.Problems, over)
		}
	}
}

// TestSlowStartNotPermitted ignores the annotation in Namespaces whose annotations do not count.
func TestSlowStartNotPermitted(t *testing.T) {
	s := newSlowStarter(t, Config{Annotated: func(map[string]string) bool { return false }}, map[string]string{AnnotationSlowStart: "60s"})
	if d := s.State.services[types.NamespacedName{Namespace: "default", Name: "web"}].spec.slowStart; d != 0 {
		t.Errorf("it counts: %s", d)
	}
}
