// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"testing"

	"github.com/slipstream-proxy/slipstream/test/cluster/site"
	"github.com/slipstream-proxy/slipstream/test/lab"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestSelector changes what belongs to a Service, at both ends: its selector, and the
// pods' labels and readiness.
func TestSelector(t *testing.T) {
	w := newWorld(t)
	w.startAll()
	one, two := w.pod(0, "web", "version", "1"), w.pod(1, "web", "version", "2")
	svc := w.service("web", nil)
	w.everywhere(svc, one, two)

	selector := func(labels map[string]any) {
		t.Helper()
		_, err := w.PatchService(t.Context(), svc.Name, map[string]any{"spec": map[string]any{"selector": labels}})
		w.check(err)
	}
	selector(map[string]any{"version": "2"})
	w.everywhere(svc, two)

	patch := []byte(`{"metadata":{"labels":{"version":"2"}}}`)
	_, err := w.Plane.Client.CoreV1().Pods(site.Namespace).Patch(t.Context(), one.Name(), types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	w.check(err)
	w.everywhere(svc, one, two)

	w.check(two.SetReady(t.Context(), false))
	w.everywhere(svc, one)
	w.check(two.SetReady(t.Context(), true))
	w.everywhere(svc, one, two)

	selector(map[string]any{"version": "3"})
	for _, n := range w.Nodes {
		w.silent(&n.Machine, site.ClusterIP(svc, false))
	}
	three := w.pod(2, "web", "version", "3")
	w.everywhere(svc, three)
}

// TestServiceProxyName wants a Service that says that another proxy serves it to be left
// alone, also when it comes to say so.
func TestServiceProxyName(t *testing.T) {
	w := newWorld(t)
	w.startAll()
	pod := w.pod(1, "web")
	svc := w.service("web", nil)
	w.everywhere(svc, pod)
	label := func(value any) {
		t.Helper()
		_, err := w.PatchService(t.Context(), svc.Name, map[string]any{
			"metadata": map[string]any{"labels": map[string]any{"service.kubernetes.io/service-proxy-name": value}},
		})
		w.check(err)
	}
	label("somebody-else")
	for _, n := range w.Nodes {
		w.silent(&n.Machine, site.ClusterIP(svc, false))
	}
	label(nil)
	w.everywhere(svc, pod)
}

// TestReplaced deletes a Service and gives its address to another one.
func TestReplaced(t *testing.T) {
	w := newWorld(t)
	w.startAll()
	old, fresh := w.pod(0, "old"), w.pod(2, "fresh")
	svc, err := w.NewService(t.Context(), w.name("short-lived"), "old", nil)
	w.check(err)
	w.everywhere(svc, old)
	w.check(w.DeleteService(t.Context(), svc.Name))
	for _, n := range w.Nodes {
		w.silent(&n.Machine, site.ClusterIP(svc, true))
	}
	next := w.service("fresh", func(s *corev1.ServiceSpec) {
		s.ClusterIP, s.ClusterIPs = svc.Spec.ClusterIP, svc.Spec.ClusterIPs
	})
	w.everywhere(next, fresh)
}

// TestDualStack has Services of one family and of both, and one that gets the other
// family later.
func TestDualStack(t *testing.T) {
	w := newWorld(t)
	w.startAll()
	pods := []*site.Pod{w.pod(0, "web"), w.pod(1, "web")}
	client := w.client(2)
	single := corev1.IPFamilyPolicySingleStack
	for _, family := range []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol} {
		svc := w.service("web", func(s *corev1.ServiceSpec) {
			nodePorts(s)
			s.IPFamilyPolicy, s.IPFamilies = &single, []corev1.IPFamily{family}
		})
		ipv6 := family == corev1.IPv6Protocol
		if site.ClusterIP(svc, !ipv6).IsValid() {
			t.Fatalf("Service of %s: ClusterIPs are %v", family, svc.Spec.ClusterIPs)
		}
		reachable := func(ipv6 bool) {
			t.Helper()
			w.reaches(client, lab.TCP, site.ClusterIP(svc, ipv6), pods...)
			w.reaches(client, lab.UDP, site.ClusterIP(svc, ipv6), pods...)
			w.reaches(&w.Outside.Machine, lab.TCP, site.NodePort(svc, w.Nodes[2], ipv6), pods...)
		}
		reachable(ipv6)
		w.silent(client, site.NodePort(svc, w.Nodes[2], !ipv6))

		svc, err := w.PatchService(t.Context(), svc.Name, map[string]any{"spec": map[string]any{"ipFamilyPolicy": corev1.IPFamilyPolicyRequireDualStack}})
		w.check(err)
		reachable(!ipv6)
		reachable(ipv6)
	}
}
