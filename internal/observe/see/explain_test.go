// SPDX-License-Identifier: Apache-2.0

package see

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	corev1 "k8s.io/api/core/v1"
)

// TestPodAsClient finds the address of a pod in the family of the destination.
func TestPodAsClient(t *testing.T) {
	x := &explainer{ctx: t.Context(), view: &View{Node: "n1"}}
	x.to = desired.FrontendKey{AddrPort: netip.MustParseAddrPort("[fd00:96::1]:80"), Protocol: desired.TCP}
	x.view.Pods = func(_ context.Context, namespace, selector string) ([]corev1.Pod, error) {
		p := corev1.Pod{Spec: corev1.PodSpec{NodeName: namespace}, Status: corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: "10.244.1.2"}, {IP: "fd00::2"}}}}
		switch selector {
		case "metadata.name=none":
			return nil, nil
		case "metadata.name=single":
			p.Status.PodIPs = p.Status.PodIPs[:1]
		}
		return []corev1.Pod{p}, nil // the namespace stands for the node
	}
	if a, err := x.clientAddr("n1/client"); err != nil || a.String() != "fd00::2" {
		t.Errorf("%s, %v", a, err)
	}
	for text, want := range map[string]string{"n1/single": "no IPv6 address", "n2/client": `on node "n2"`, "n1/none": "there is no pod n1/none"} {
		if _, err := x.clientAddr(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}

// TestNotReadyPod: explain names the pod of an endpoint that is not ready, and why it is not.
func TestNotReadyPod(t *testing.T) {
	v := view(t, web(strings.Replace(endpoint, "n1", "n1, conditions: {ready: false}", 1)))
	v.Pods = func(_ context.Context, namespace, selector string) (all []corev1.Pod, err error) {
		if namespace != "default" || selector != "status.podIP=10.244.1.10" {
			return nil, fmt.Errorf("%s, %s", namespace, selector)
		}
		for name, ready := range map[string]corev1.ConditionStatus{"web-0": corev1.ConditionFalse, "ready": corev1.ConditionTrue} {
			p := corev1.Pod{Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready, Message: "containers with unready status: [app]"}}}}
			p.Name = name
			all = append(all, p)
		}
		return all, nil
	}
	x, err := v.Explain(t.Context(), Question{From: "10.244.1.2", To: "web"})
	if err != nil {
		t.Fatal(err)
	}
	const want = "10.244.1.10:8080: not ready, pod web-0 (containers with unready status: [app])."
	if !slices.ContainsFunc(x.Steps, func(s Step) bool { return s.Title == "Not used" && s.Text == want }) {
		t.Errorf("%+v", x.Steps)
	}
}
