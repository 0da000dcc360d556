// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
