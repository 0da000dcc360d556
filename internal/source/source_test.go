// SPDX-License-Identifier: Apache-2.0

package source

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestEventString(t *testing.T) {
	meta := metav1.ObjectMeta{Namespace: "default", Name: "web"}
	for _, c := range []struct {
		event Event
		want  string
	}{
		{Event{Set, &corev1.Service{ObjectMeta: meta}}, "Set Service default/web"},
		{Event{Delete, &discoveryv1.EndpointSlice{ObjectMeta: meta}}, "Delete EndpointSlice default/web"},
		{Event{Set, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}}, "Set Node n1"},
		{Event{Delete, &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "extra"}}}, "Delete ServiceCIDR extra"},
		{Event{Set, &corev1.Pod{ObjectMeta: meta}}, "Set Pod default/web"},
		{Event{Set, &corev1.ConfigMap{ObjectMeta: meta}}, "Set ConfigMap default/web"},
		{Event{Type: Synced}, "Synced"},
		{Event{}, "Type(0)"},
	} {
		if got := c.event.String(); got != c.want {
			t.Errorf("String() = %q, want %q", got, c.want)
		}
	}
}
