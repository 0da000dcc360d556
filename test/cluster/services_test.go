// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"strings"
	"testing"

	"github.com/slipstream-proxy/slipstream/test/cluster/site"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestSelector changes which pods belong to a Service: by its selector, and by the pods' labels
// and readiness.
func TestSelector(t *testing.T) {
	e := newEnv(t)
	e.startAll()
	one, two := e.pod(0, "web", "version", "1"), e.pod(1, "web", "version", "2")
	svc := e.service("web", nil)
	e.everywhere(svc, one, two)

	selector := func(labels map[string]any) {
		t.Helper()
		_, err := e.patchService(t.Context(), svc.Name, map[string]any{"spec": map[string]any{"selector": labels}})
		e.check(err)
	}
	selector(map[string]any{"version": "2"})
	e.everywhere(svc, two)

	patch := []byte(`{"metadata":{"labels":{"version":"2"}}}`)
	_, err := e.Plane.Client.CoreV1().Pods(site.Namespace).Patch(t.Context(), one.Name(), types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	e.check(err)
	e.everywhere(svc, one, two)

	e.check(two.SetReady(t.Context(), false))
	e.everywhere(svc, one)
	e.check(two.SetReady(t.Context(), true))
	e.everywhere(svc, one, two)

	selector(map[string]any{"version": "3"})
	for _, n := range e.Nodes {
		e.silent(&n.Machine, clusterIP(svc, false))
	}
	three := e.pod(2, "web", "version", "3")
	e.everywhere(svc, three)
}

// TestServiceProxyName checks that a Service labelled for another proxy is left alone, also if
// the label is added later.
func TestServiceProxyName(t *testing.T) {
	e := newEnv(t)
	e.startAll()
	pod := e.pod(1, "web")
	svc := e.service("web", nil)
	e.everywhere(svc, pod)
	label := func(value any) {
		t.Helper()
		_, err := e.patchService(t.Context(), svc.Name, map[string]any{
			"metadata": map[string]any{"labels": map[string]any{"service.kubernetes.io/service-proxy-name": value}},
		})
		e.check(err)
	}
	label("another-proxy")
	for _, n := range e.Nodes {
		e.silent(&n.Machine, clusterIP(svc, false))
	}
	label(nil)
	e.everywhere(svc, pod)
}

// TestReplaced deletes a Service and gives its address to another one.
func TestReplaced(t *testing.T) {
	e := newEnv(t)
	e.startAll()
	old, fresh := e.pod(0, "old"), e.pod(2, "fresh")
	svc, err := e.newService(t.Context(), e.name("short-lived"), "old", nil)
	e.check(err)
	e.everywhere(svc, old)
	e.check(e.deleteService(t.Context(), svc.Name))
	for _, n := range e.Nodes {
		e.silent(&n.Machine, clusterIP(svc, true))
	}
	next := e.service("fresh", func(s *corev1.ServiceSpec) {
		s.ClusterIP, s.ClusterIPs = svc.Spec.ClusterIP, svc.Spec.ClusterIPs
	})
	e.everywhere(next, fresh)
}

// TestDualStack uses Services of one family and of both, and one that gets the other family
// later.
func TestDualStack(t *testing.T) {
	e := newEnv(t)
	e.startAll()
	pods := []*runningPod{e.pod(0, "web"), e.pod(1, "web")}
	client := e.client(2)
	single := corev1.IPFamilyPolicySingleStack
	for _, family := range []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol} {
		svc := e.service("web", func(s *corev1.ServiceSpec) {
			nodePorts(s)
			s.IPFamilyPolicy, s.IPFamilies = &single, []corev1.IPFamily{family}
		})
		ipv6 := family == corev1.IPv6Protocol
		if clusterIP(svc, !ipv6).IsValid() {
			t.Fatalf("Service of %s: ClusterIPs are %v", family, svc.Spec.ClusterIPs)
		}
		reachable := func(ipv6 bool) {
			t.Helper()
			e.reaches(client, lab.TCP, clusterIP(svc, ipv6), pods...)
			e.reaches(client, lab.UDP, clusterIP(svc, ipv6), pods...)
			e.reaches(&e.Outside.Machine, lab.TCP, nodePort(svc, e.Nodes[2], ipv6), pods...)
		}
		reachable(ipv6)
		e.silent(client, nodePort(svc, e.Nodes[2], !ipv6))

		svc, err := e.patchService(t.Context(), svc.Name, map[string]any{"spec": map[string]any{"ipFamilyPolicy": corev1.IPFamilyPolicyRequireDualStack}})
		e.check(err)
		reachable(!ipv6)
		reachable(ipv6)
	}
}

// TestContested creates two Services with one external IP. All nodes report it, in one Event
// for each port on the Service that does not have it.
func TestContested(t *testing.T) {
	if !proxyKind(t).IsSlipstream() {
		t.Skip("an Event of Slipstream")
	}
	e := newEnv(t)
	e.startAll()
	external := func(s *corev1.ServiceSpec) { s.ExternalIPs = []string{"192.0.2.77"} }
	older := e.service("web", external)
	younger := e.service("web", external)
	loser, winner := younger, older
	if older.CreationTimestamp.Equal(&younger.CreationTimestamp) && younger.Name < older.Name {
		loser, winner = older, younger
	}
	events := func() (notes []string) {
		all, err := e.Plane.Client.EventsV1().Events(loser.Namespace).List(t.Context(), metav1.ListOptions{})
		e.check(err)
		for _, event := range all.Items {
			if event.Reason == "FrontendContested" && event.Regarding.Kind == "Service" && event.Regarding.Name == loser.Name {
				notes = append(notes, event.Note)
			}
		}
		return notes
	}
	e.until("the Event", func() error {
		if len(events()) == 0 {
			return errors.New("there is none")
		}
		return nil
	})
	seen := map[string]bool{}
	for _, note := range events() {
		if seen[note] || !strings.Contains(note, "belongs to Service "+winner.Namespace+"/"+winner.Name) {
			t.Errorf("Event %q", note)
		}
		seen[note] = true
	}
}
