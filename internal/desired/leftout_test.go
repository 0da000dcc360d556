// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestLeaveOut leaves a Service out, whatever its owner does, and takes it back.
func TestLeaveOut(t *testing.T) {
	s, m := New(Config{}), newModel()
	set := func(name, ip string) {
		s.SetService(&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
			Spec:       corev1.ServiceSpec{ClusterIP: ip, Ports: []corev1.ServicePort{{Port: 80}}},
		})
	}
	step := func(what string, frontends, problems int) {
		t.Helper()
		u := s.Change()
		if err := m.apply(u); err != nil || len(m.frontends) != frontends || len(u.Problems) != problems {
			t.Errorf("%s: %d frontends, problems %v, %v", what, len(m.frontends), u.Problems, err)
		}
	}
	set("web", "10.96.0.1")
	set("other", "10.96.0.2")
	step("both", 2, 0)
	web := types.NamespacedName{Namespace: "default", Name: "web"}
	if !s.LeaveOut(web, "no") || s.LeaveOut(web, "no") {
		t.Error("it is left out twice, or not at all")
	}
	step("left out", 1, 1)
	set("web", "10.96.0.1")
	step("changed", 1, 0)
	s.DeleteService("default", "web")
	set("web", "10.96.0.3")
	step("created again", 1, 0)
	if !s.TakeBack() || s.TakeBack() {
		t.Error("it is taken back twice, or not at all")
	}
	step("taken back", 2, 0)
	s.LeaveOut(web, "no")
	s.DeleteService("default", "web")
	s.TakeBack()
	step("deleted", 1, 1)
	if len(s.services) != 1 {
		t.Errorf("%d records", len(s.services))
	}
}
