// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// TestFastPathAnnotation changes the annotation, which changes the frontend.
func TestFastPathAnnotation(t *testing.T) {
	s := New(Config{})
	slow := false
	for _, step := range []struct {
		value   string
		slow    bool
		problem string
	}{
		{"", false, ""}, {"off", true, ""}, {"on", false, ""}, {"off", true, ""},
		{"Off", false, "Service default/web: metadata.annotations[slipstream.io/fast-path]: neither on nor off: Off"},
	} {
		s.SetService(&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", Annotations: map[string]string{AnnotationFastPath: step.value}},
			Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.1", Ports: []corev1.ServicePort{{Port: 80}}},
		})
		c := s.Change()
		for _, f := range c.Frontends {
			slow = f.New.SlowPath
		}
		problem := ""
		for _, p := range c.Problems {
			problem = p.Error()
		}
		if slow != step.slow || problem != step.problem {
			t.Errorf("with %q: slow path %t, problem %q", step.value, slow, problem)
		}
	}
}

// TestSchedulerAnnotation: the check decides on the scheduler, if there is one.
func TestSchedulerAnnotation(t *testing.T) {
	check := func(value string, _ bool) (string, error) {
		if value == "bad" {
			return "", errors.New("no such scheduler")
		}
		return value + "!", nil
	}
	for _, c := range []struct {
		check          func(string, bool) (string, error)
		value          string
		want, problems string
	}{
		{nil, "bad", "", `Service default/web: metadata.annotations[slipstream.io/scheduler]: "bad" is none of random, rr, wrr, lc, wlc, sh, maglev, mh, nearest`}, {check, "", "", ""}, {check, "sh", "sh!", ""},
		{check, "bad", "", "Service default/web: metadata.annotations[slipstream.io/scheduler]: no such scheduler"},
	} {
		s := New(Config{IPVS: true, Scheduler: c.check})
		s.SetService(&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", Annotations: map[string]string{AnnotationScheduler: c.value}},
			Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.1", Ports: []corev1.ServicePort{{Port: 80}}},
		})
		u := s.Change()
		problems := ""
		for _, p := range u.Problems {
			problems += p.Error()
		}
		if len(u.Frontends) != 1 || u.Frontends[0].New.Scheduler != c.want || problems != c.problems {
			t.Errorf("%q: %+v, problems %q", c.value, u.Frontends, problems)
		}
	}
}

// TestScheduledByWeight: the scheduler of a Service port looks at weights while endpoints have some, or zones
// do, and only then.
func TestScheduledByWeight(t *testing.T) {
	s := New(Config{IPVS: true, Scheduler: func(value string, weighted bool) (string, error) { return fmt.Sprint(value, " ", weighted), nil }})
	scheduler := "none"
	step := func(what, want string, do func()) {
		t.Helper()
		do()
		for _, f := range s.Change().Frontends {
			scheduler = f.New.Scheduler
		}
		if scheduler != want {
			t.Errorf("%s: %q, want %q", what, scheduler, want)
		}
	}
	service := func(annotations map[string]string) {
		s.SetService(&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", Annotations: annotations},
			Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.1", Ports: []corev1.ServicePort{{Port: 80}}},
		})
	}
	slice := func(weight string) {
		s.SetEndpointSlice(&discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "default", Name: "web", Labels: map[string]string{discoveryv1.LabelServiceName: "web"},
				Annotations: map[string]string{AnnotationWeight: weight},
			},
			AddressType: discoveryv1.AddressTypeIPv4,
			Ports:       []discoveryv1.EndpointPort{{Port: ptr.To[int32](8080)}},
			Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.244.1.1"}}},
		})
	}
	step("no weights", "", func() { service(nil); slice("") })
	step("a weight", " true", func() { slice("10") })
	step("another", " true", func() { slice("20") })
	step("no weights again", "", func() { slice("") })
	step("by zone", " true", func() { service(map[string]string{AnnotationLocalZone: "80"}) })
	step("with a scheduler", "rr false", func() { service(map[string]string{AnnotationScheduler: "rr"}) })
	step("and a weight", "rr false true", func() { slice("10") })
	step("the default", "rr false", func() { slice("100") })
}

// TestAffinitySteps: timeouts of session affinity are few, none is shorter than the Service's or much longer, and
// some are exact: the default, the maximum, and that of upstream's e2e specs, which retry after 5 s more.
func TestAffinitySteps(t *testing.T) {
	steps := map[uint32]bool{}
	for n := int32(-1); n <= 90_000; n++ {
		s := New(Config{})
		s.SetService(&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
			Spec: corev1.ServiceSpec{
				ClusterIP: "10.96.0.1", Ports: []corev1.ServicePort{{Port: 80}}, SessionAffinity: corev1.ServiceAffinityClientIP,
				SessionAffinityConfig: &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &n}},
			},
		})
		got := s.Change().Frontends[0].New.Affinity
		steps[got] = true
		want := uint32(n)
		switch {
		case n <= 0:
			want = 10_800
		case n > 86_400: // the API does not have such
			want = 86_400
		}
		if exact := want == 125 || want == 10_800 || want == 86_400; got < want || got > want*6/5 || exact && got != want {
			t.Fatalf("%d s: %d s", n, got)
		}
	}
	if len(steps) > 250 {
		t.Errorf("%d different timeouts", len(steps))
	}
}

// TestSameService: a version of a Service that differs in what does not matter here costs its parsing only.
func TestSameService(t *testing.T) {
	s := New(Config{NodeName: "n1"})
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "web"}, Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.1", Ports: []corev1.ServicePort{{Port: 80}}}}
	for i, c := range []struct {
		what    string
		edit    func()
		differs bool
	}{
		{"the first version", func() {}, true},
		{"another annotation", func() { svc.Annotations = map[string]string{"example.com/x": "y"} }, false},
		{"a selector", func() { svc.Spec.Selector = map[string]string{"app": "web"} }, false},
		{"a scheduler", func() { svc.Annotations[AnnotationScheduler] = "maglev" }, true},
		{"a NodePort", func() { svc.Spec.Type, svc.Spec.Ports[0].NodePort = corev1.ServiceTypeNodePort, 30080 }, true},
		{"a range", func() { svc.Annotations[AnnotationPortRanges] = "tcp/70-90" }, true},
		{"a port in the range", func() { svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: "b", Port: 81}) }, true},
		{"the last version", func() {}, false},
	} {
		c.edit()
		s.SetService(svc.DeepCopy())
		if differs := len(s.dirtyEndpoints) > 0; differs != c.differs {
			t.Errorf("%d, %s: differs: %t", i, c.what, differs)
		}
		s.Change()
	}
}
