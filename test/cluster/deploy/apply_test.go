// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"encoding/json"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// TestApply sends everything to the API server, in a dry run that is strict about fields. The
// API server does not know ServiceMonitors, which TestServiceMonitor checks.
func TestApply(t *testing.T) {
	c := newCluster(t)
	for name, all := range map[string]objects{
		"kustomize":             kustomize(t, baseDir),
		"kustomize, monitoring": kustomize(t, "testdata/monitoring"),
		"Helm":                  helm(t, "apiServer: "+placeholder+"\nmetrics: {serviceMonitor: {enabled: true}}\nslipstream: {checkPeriod: 1s}"),
		"Helm, eBPF":            helm(t, "apiServer: "+placeholder+"\nslipstream: {fastPath: {engine: ebpf}}"),
		"Helm, sockets":         helm(t, "apiServer: "+placeholder+"\nslipstream: {socketLoadBalancing: tcp}"),
		"Helm, podSocket":       helm(t, "apiServer: "+placeholder+"\nslipstream: {podSocket: /run/slipstream-pods/drained.sock}"),
		"Helm, privileged":      helm(t, "apiServer: "+placeholder+"\nprivileged: true"),
	} {
		for key, u := range all {
			if u.GetKind() == "ServiceMonitor" {
				continue
			}
			if err := c.apply(t.Context(), u, metav1.DryRunAll); err != nil {
				t.Errorf("%s: %s: %v", name, key, err)
			}
		}
	}
	// The dry run is one that finds mistakes.
	wrong := kustomize(t, baseDir).get(t, "DaemonSet slipstream")
	wrong.Object["spec"].(map[string]any)["hostNetwork"] = true
	if err := c.apply(t.Context(), wrong, metav1.DryRunAll); err == nil {
		t.Error("a field that does not exist was taken")
	}
}

// TestServiceMonitor checks that it has only fields that the Prometheus operator knows, and
// that it selects the Service beside it.
func TestServiceMonitor(t *testing.T) {
	for name, all := range map[string]objects{
		"kustomize": kustomize(t, "testdata/monitoring"),
		"Helm":      helm(t, "apiServer: "+placeholder+"\nmetrics: {serviceMonitor: {enabled: true, labels: {release: prometheus}}}"),
	} {
		u, service := all.get(t, "ServiceMonitor slipstream"), all.get(t, "Service slipstream-metrics")
		text, err := u.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		var m monitoringv1.ServiceMonitor
		d := json.NewDecoder(strings.NewReader(string(text)))
		d.DisallowUnknownFields()
		if err := d.Decode(&m); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		selector, err := metav1.LabelSelectorAsSelector(&m.Spec.Selector)
		if err != nil || selector.Empty() || !selector.Matches(labels.Set(service.GetLabels())) {
			t.Errorf("%s: selector %v does not match the Service: %v", name, m.Spec.Selector, err)
		}
		if name == "Helm" && m.Labels["release"] != "prometheus" {
			t.Errorf("labels are %v", m.Labels)
		}
	}
}

// TestServiceMonitorEndpoint checks that values of the endpoint replace the chart's own, but for the job that the alerts
// ask for, and that no key is there twice.
func TestServiceMonitorEndpoint(t *testing.T) {
	all := helm(t, "apiServer: "+placeholder+"\ntlsSecret: s\nmetrics: {serviceMonitor: {enabled: true, endpoint: {interval: 1m, "+
		"tlsConfig: {insecureSkipVerify: true}, relabelings: [{targetLabel: zone, replacement: a}]}}}")
	spec, _ := all.get(t, "ServiceMonitor slipstream").Object["spec"].(map[string]any)
	got, err := json.Marshal(spec["endpoints"])
	if err != nil {
		t.Fatal(err)
	}
	const want = `[{"interval":"1m","port":"metrics","relabelings":[{"replacement":"kube-proxy","targetLabel":"job"},` +
		`{"replacement":"a","targetLabel":"zone"}],"scheme":"https","tlsConfig":{"insecureSkipVerify":true}}]`
	if string(got) != want {
		t.Errorf("endpoints are %s; want %s", got, want)
	}
}
