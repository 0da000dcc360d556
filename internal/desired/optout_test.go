// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// podWith makes a pod with an annotation and addresses.
func podWith(namespace, name, fastPath string, ips ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	if fastPath != "" {
		p.Annotations = map[string]string{AnnotationFastPath: fastPath}
	}
	for _, ip := range ips {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: ip})
	}
	return p
}

func namespaceWith(name, fastPath string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{AnnotationFastPath: fastPath}}}
}

// TestOptOut changes pods and Namespaces, which changes the addresses off the fast path.
func TestOptOut(t *testing.T) {
	s := New(Config{SlowPathPod: func(p *corev1.Pod) bool { return p.Labels["app"] == "sip" }})
	step := func(what, want string) {
		t.Helper()
		c := s.Change()
		sorted := func(all []Member) []Member {
			return slices.SortedFunc(slices.Values(all), func(a, b Member) int { return a.Addr.Compare(b.Addr) })
		}
		got := fmt.Sprintf("+%v -%v", sorted(c.Sets[SlowPathIPs].Added), sorted(c.Sets[SlowPathIPs].Removed))
		for _, f := range c.Frontends {
			got += fmt.Sprintf(" %s %t", f.New.Service, f.New.SlowPath)
		}
		for _, p := range c.Problems {
			got += " " + p.Error()
		}
		if got != want {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
	}
	s.SetPod(podWith("a", "off", "off", "10.0.0.1", "fd00::1"))
	s.SetPod(podWith("a", "on", "on", "10.0.0.2"))
	s.SetPod(podWith("a", "plain", "", "10.0.0.3"))
	step("annotations", "+[10.0.0.1 fd00::1] -[]")
	s.SetPod(podWith("a", "plain", "off", "10.0.0.3"))
	step("annotated later", "+[10.0.0.3] -[]")
	s.SetPod(podWith("a", "plain", "off", "10.0.0.4"))
	step("another address", "+[10.0.0.4] -[10.0.0.3]")
	s.SetPod(podWith("b", "same", "off", "10.0.0.4"))
	s.DeletePod("a", "plain")
	step("two pods with one address", "+[] -[]")
	s.SetPod(podWith("b", "same", "", "10.0.0.4"))
	step("annotation removed", "+[] -[10.0.0.4]")

	selected := podWith("b", "selected", "", "10.0.0.5")
	selected.Labels = map[string]string{"app": "sip"}
	s.SetPod(selected)
	step("selected", "+[10.0.0.5] -[]")
	host := podWith("b", "host", "off", "192.0.2.1")
	host.Spec.HostNetwork = true
	s.SetPod(host)
	step("host network", "+[] -[]")
	selected.Status.Phase = corev1.PodSucceeded
	s.SetPod(selected)
	step("ended", "+[] -[10.0.0.5]")

	s.SetService(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "b", Name: "web"},
		Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.1", Ports: []corev1.ServicePort{{Port: 80}}},
	})
	step("a Service", "+[] -[] b/web false")
	s.SetNamespace(namespaceWith("b", "off"))
	s.SetNamespace(namespaceWith("c", "off"))
	step("a Namespace", "+[10.0.0.4] -[] b/web true")
	s.SetPod(podWith("c", "later", "", "10.0.0.6"))
	step("a pod of a Namespace", "+[10.0.0.6] -[]")
	if full := s.Full(); len(full.Sets[SlowPathIPs].Added) != 4 || !full.Frontends[0].New.SlowPath {
		t.Errorf("full content: %v, %+v", full.Sets[SlowPathIPs], full.Frontends[0].New)
	}
	s.SetNamespace(namespaceWith("b", ""))
	s.DeleteNamespace("c")
	step("annotations of Namespaces removed", "+[] -[10.0.0.4 10.0.0.6] b/web false")

	for range 2 { // reported once
		s.SetPod(podWith("a", "off", "Off", "10.0.0.1", "fd00::1"))
	}
	s.SetNamespace(namespaceWith("a", "no"))
	step("invalid values", "+[] -[10.0.0.1 fd00::1]"+
		" Pod a/off: metadata.annotations[slipstream.io/fast-path]: neither on nor off: Off"+
		" Namespace a: metadata.annotations[slipstream.io/fast-path]: neither on nor off: no")
}

// TestDirectPods changes pods, which changes whose sockets may connect directly.
func TestDirectPods(t *testing.T) {
	s := New(Config{DirectPod: func(p *corev1.Pod) bool { return p.Labels["mesh"] == "" }})
	step := func(what, want string) {
		t.Helper()
		c := s.Change().Sets[DirectIPs]
		if got := fmt.Sprintf("+%v -%v", c.Added, c.Removed); got != want {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
	}
	p := podWith("a", "web", "off", "10.0.0.1")
	s.SetPod(p)
	step("not excluded", "+[10.0.0.1] -[]")
	p.Labels = map[string]string{"mesh": "on"}
	s.SetPod(p)
	step("excluded by a new label", "+[] -[10.0.0.1]")
	p.Labels = nil
	s.SetPod(p)
	step("not excluded any more", "+[10.0.0.1] -[]")
	if full := s.Full().Sets[DirectIPs]; len(full.Added) != 1 {
		t.Errorf("full content: %v", full)
	}
	host := podWith("a", "host", "", "192.0.2.1")
	host.Spec.HostNetwork = true
	s.SetPod(host)
	step("host network", "+[] -[]")
	s.DeletePod("a", "web")
	step("deleted", "+[] -[10.0.0.1]")

	s = New(Config{})
	s.SetPod(p)
	step("without Config.DirectPod", "+[] -[]")
}
