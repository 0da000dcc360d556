// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"fmt"
	"maps"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestLimitAnnotations parses limits. A mistake is one Problem, and the other limits count.
func TestLimitAnnotations(t *testing.T) {
	good := map[string]string{AnnotationMaxConnections: "1000", AnnotationMaxPerClient: "20", AnnotationRatePerClient: "50/s", AnnotationLimitAction: "drop"}
	all := Limits{1000, 20, 50, 's', true}
	for _, c := range []struct {
		annotation, value string
		want              Limits
		problems          int
	}{
		{AnnotationMaxConnections, "1000", all, 0},
		{AnnotationMaxConnections, "0", Limits{0, 20, 50, 's', true}, 1},
		{AnnotationMaxConnections, "10001", Limits{0, 20, 50, 's', true}, 1},
		{AnnotationMaxPerClient, "many", Limits{1000, 0, 50, 's', true}, 1},
		{AnnotationRatePerClient, "50/m", Limits{1000, 20, 50, 'm', true}, 0},
		{AnnotationRatePerClient, "50/h", Limits{1000, 20, 0, 0, true}, 1},
		{AnnotationRatePerClient, "50", Limits{1000, 20, 0, 0, true}, 1},
		{AnnotationRatePerClient, "50/sm", Limits{1000, 20, 0, 0, true}, 1},
		{AnnotationRatePerClient, "-1/s", Limits{1000, 20, 0, 0, true}, 1},
		{AnnotationLimitAction, "refuse", Limits{1000, 20, 50, 's', false}, 0},
		{AnnotationLimitAction, "log", Limits{1000, 20, 50, 's', false}, 1},
	} {
		for _, none := range []bool{false, true} {
			annotations := maps.Clone(good)
			annotations[c.annotation] = c.value
			s := New(Config{NoLimits: none})
			s.SetService(&corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", Annotations: annotations},
				Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.10", Ports: []corev1.ServicePort{{Port: 80}}},
			})
			u := s.Change()
			want, problems := c.want, c.problems
			if none {
				want, problems = Limits{}, c.problems+3
			}
			if got := u.Frontends[0].New.Limits; got != want {
				t.Errorf("%s %q: %+v, want %+v", c.annotation, c.value, got, want)
			}
			if len(u.Problems) != problems {
				t.Errorf("%s %q: problems %v, want %d", c.annotation, c.value, u.Problems, problems)
			}
			for _, p := range u.Problems {
				if p.Object != "Service default/web" || p.Field == "" {
					t.Errorf("%s %q: problem %v", c.annotation, c.value, p)
				}
			}
		}
	}
}

// TestPlacesOfLimits has more limits than there is room for: no namespace takes the places of others, and the oldest
// Services come first, whatever the order in which they are seen.
func TestPlacesOfLimits(t *testing.T) {
	s := New(Config{})
	set := func(namespace string, n, year int) {
		s.SetService(&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: namespace, Name: fmt.Sprint("s", n), CreationTimestamp: metav1.Unix(int64(year), 0),
				Annotations: map[string]string{AnnotationMaxConnections: fmt.Sprint(100 + n)},
			},
			Spec: corev1.ServiceSpec{ClusterIP: fmt.Sprintf("10.%d.%d.%d", len(namespace), year-2000, n), Ports: []corev1.ServicePort{{Port: 80}}},
		})
	}
	limited := map[string]int{}
	note := func(problems int) {
		t.Helper()
		u := s.Change()
		for _, c := range u.Frontends {
			for f, n := range map[*Frontend]int{c.Old: -1, c.New: 1} {
				if f != nil && f.Limits != (Limits{}) {
					limited[f.Service.Namespace] += n
				}
			}
		}
		if len(u.Problems) != problems {
			t.Errorf("problems %v, want %d", u.Problems, problems)
		}
		for _, p := range u.Problems {
			if p.Service.Namespace == "" || p.Field != "metadata.annotations" {
				t.Errorf("problem %v", p)
			}
		}
	}
	for n := range 50 {
		set("attack", n, 2010)
	}
	note(50 - maxLimitsOf)
	for _, namespace := range []string{"b", "bb", "bbb", "bbbb"} {
		for n := range maxLimitsOf {
			set(namespace, n, 2020)
		}
	}
	note(maxLimitsOf)
	if want := (map[string]int{"attack": 8, "b": 8, "bb": 8, "bbb": 8}); !maps.Equal(limited, want) {
		t.Errorf("limited Services %v, want %v", limited, want)
	}
	set("bbbbb", 0, 2005) // older than all: one of the youngest has no place any more
	set("b", 50, 2030)
	s.SetService(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "b", Name: "same", CreationTimestamp: metav1.Unix(2031, 0), Annotations: map[string]string{AnnotationMaxConnections: "100"}},
		Spec:       corev1.ServiceSpec{ClusterIP: "10.99.0.1", Ports: []corev1.ServicePort{{Port: 80}}},
	})
	note(2)
	if limited["bbbbb"] != 1 || limited["b"] != 9 || limited["bbb"] != 7 {
		t.Errorf("limited Services %v", limited)
	}
	for n := range 50 {
		s.DeleteService("attack", fmt.Sprint("s", n))
	}
	note(0)
	delete(limited, "attack")
	if want := (map[string]int{"b": 9, "bb": 8, "bbb": 8, "bbbb": 7, "bbbbb": 1}); !maps.Equal(limited, want) {
		t.Errorf("limited Services %v, want %v", limited, want)
	}
}
