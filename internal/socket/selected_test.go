// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestSelected serves only pods that are known and not excluded, by label or namespace, as they
// change, and the node.
func TestSelected(t *testing.T) {
	w := newWorldWith(t, desired.Config{NodeName: node, MaxTable: desired.TableSizes()[0], DirectPod: func(p *corev1.Pod) bool {
		return p.Namespace != "mesh" && p.Labels["mesh"] == ""
	}})
	w.check(w.Close())
	w.options.Selected = true
	w.start()
	w.fill(ports, nil)
	w.reconcile()
	connects := func(what string, client, node bool) {
		t.Helper()
		before := t.Failed()
		w.direct(&w.client.Machine, client)
		w.direct(&w.node.Machine, node)
		if t.Failed() && !before {
			t.Log("when: " + what)
		}
	}
	pod := func(namespace, mesh string, ips ...string) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "client"}}
		if mesh != "" {
			p.Labels = map[string]string{"mesh": mesh}
		}
		for _, ip := range ips {
			p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: ip})
		}
		return p
	}
	connects("the pod is not known", false, true)
	w.state.SetPod(pod("default", "", "10.244.1.99"))
	w.apply()
	connects("another pod is known", false, true)
	w.state.SetPod(pod("default", "", "10.244.1.2", "fd00:244:1::2"))
	w.apply()
	connects("the pod is known", true, true)
	w.state.SetPod(pod("default", "on", "10.244.1.2", "fd00:244:1::2"))
	w.apply()
	connects("excluded by label", false, true)
	if s, err := w.Stats(); err != nil || s.Namespaces != 1 {
		t.Errorf("%+v (%v), want one namespace", s, err)
	}
	w.reconcile()
	connects("excluded, all programmed again", false, true)
	w.state.SetPod(pod("default", "", "fd00:244:1::2"))
	w.apply()
	connects("not excluded any more", true, true)
	w.state.DeletePod("default", "client")
	w.apply()
	connects("deleted", false, true)
	w.state.SetPod(pod("mesh", "", "10.244.1.2"))
	w.apply()
	connects("excluded by namespace", false, true)

	// The pod is known before its network namespace is mounted, and when the proxy starts again.
	w.state.SetPod(pod("default", "", "10.244.1.2"))
	w.state.DeletePod("mesh", "client")
	w.apply()
	other := w.pod("other", 4)
	p := pod("default", "", "10.244.1.4")
	p.Name = "other"
	w.state.SetPod(p)
	w.apply()
	w.direct(&other.Machine, false)
	w.name(other, 2)
	w.check(w.scan())
	w.direct(&other.Machine, true)
	w.check(w.Close())
	w.start()
	w.reconcile()
	connects("started again", true, true)
	w.direct(&other.Machine, true)
}
