// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestProblemsAreReportedOnce changes a Service with a bad field in a way that does not matter.
func TestProblemsAreReportedOnce(t *testing.T) {
	s := New(Config{})
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.1", ExternalIPs: []string{"nonsense"}, Ports: []corev1.ServicePort{{Port: 80}}},
	}
	for i, want := range []int{1, 0, 0} {
		svc.ResourceVersion = string(rune('1' + i))
		s.SetService(svc)
		if n := len(s.Change().Problems); n != want {
			t.Errorf("version %d: %d problems, want %d", i+1, n, want)
		}
	}
}
