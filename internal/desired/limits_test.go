// SPDX-License-Identifier: Apache-2.0

package desired

import (
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
