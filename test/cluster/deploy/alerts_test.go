// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

const monitoringDir = "../../../deploy/monitoring"

// monitoredJobs are the jobs that the ServiceMonitors of the base and of the chart give.
func monitoredJobs(t *testing.T) map[string]string {
	t.Helper()
	jobs := map[string]string{}
	for name, all := range map[string]objects{
		"kustomize": kustomize(t, "testdata/monitoring"),
		"Helm":      helm(t, "apiServer: "+placeholder+"\nmetrics: {serviceMonitor: {enabled: true}}"),
	} {
		var m monitoringv1.ServiceMonitor
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(all.get(t, "ServiceMonitor slipstream").Object, &m); err != nil {
			t.Fatal(err)
		}
		service := all.get(t, "Service slipstream-metrics")
		// What the operator makes of it: the Service's name, its label, or a replacement.
		job := service.GetName()
		if value := service.GetLabels()[m.Spec.JobLabel]; value != "" {
			job = value
		}
		if len(m.Spec.Endpoints) != 1 {
			t.Fatalf("%s: %d endpoints", name, len(m.Spec.Endpoints))
		}
		e := m.Spec.Endpoints[0]
		for _, r := range append(e.RelabelConfigs, e.MetricRelabelConfigs...) {
			if r.TargetLabel != "job" {
				continue
			}
			if r.Replacement == nil || len(r.SourceLabels) > 0 {
				t.Fatalf("%s: this test knows only replacements of the job, not %+v", name, r)
			}
			job = *r.Replacement
		}
		jobs[name] = job
	}
	return jobs
}

// alertRules is the content of rules.yaml for Prometheus itself.
func alertRules(t *testing.T) (rules struct {
	Groups []monitoringv1.RuleGroup `json:"groups"`
}) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(monitoringDir, "rules.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var object struct{ Spec any }
	if err := yaml.Unmarshal(text, &object); err != nil {
		t.Fatal(err)
	}
	spec, err := json.Marshal(object.Spec)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(spec, &rules); err != nil {
		t.Fatal(err)
	}
	if len(rules.Groups) == 0 {
		t.Fatal("rules.yaml has no groups")
	}
	return rules
}

var (
	metric = regexp.MustCompile(`\b(?:up\b|(?:kubeproxy|slipstream|kubernetes|rest_client|process|go)_[a-z0-9_]+)(\{[^}]*\})?`)
	ofJob  = regexp.MustCompile(`[{, ]job(=~?)"([^"]*)"`)
)

// selects checks that each metric of the expression is asked for with the job.
func selects(t *testing.T, where, expr, job string) {
	t.Helper()
	all := metric.FindAllStringSubmatch(expr, -1)
	if len(all) == 0 {
		t.Errorf("%s: no metric in %q", where, expr)
	}
	for _, m := range all {
		label := ofJob.FindStringSubmatch(m[1])
		switch {
		case label == nil:
			t.Errorf("%s: %s does not say of which job", where, m[0])
		case label[1] == "=" && label[2] != job, label[1] == "=~" && !regexp.MustCompile("^(?:"+label[2]+")$").MatchString(job):
			t.Errorf("%s: %s does not select the ServiceMonitor's job %q", where, m[0], job)
		}
	}
}

// TestMonitoredJob checks that the alerts and the dashboard select the job that the ServiceMonitors give.
func TestMonitoredJob(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(monitoringDir, "dashboard.json"))
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Templating struct {
			List []struct {
				Name, AllValue string
				Current        struct{ Value any }
			}
		}
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	chosen := ""
	for _, v := range dashboard.Templating.List {
		if v.Name == "job" && fmt.Sprint(v.Current.Value) == "[$__all]" {
			chosen = v.AllValue
		}
	}
	variable := regexp.MustCompile(`\$job\b`)
	for name, job := range monitoredJobs(t) {
		for _, g := range alertRules(t).Groups {
			for _, r := range g.Rules {
				selects(t, name+", alert "+r.Alert, r.Expr.String(), job)
			}
		}
		for _, p := range dashboard.Panels {
			for _, target := range p.Targets {
				selects(t, name+", panel "+p.Title, variable.ReplaceAllLiteralString(target.Expr, chosen), job)
			}
		}
	}
}

// TestAlerts has promtool evaluate the alerts about proxies that do not answer, for scrapes under the job that
// the ServiceMonitors give.
func TestAlerts(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Fatalf("%v (test/deps.sh installs it)", err)
	}
	dir := t.TempDir()
	write := func(name string, content any) string {
		t.Helper()
		text, err := yaml.Marshal(content)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, text, 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write("rules.yaml", alertRules(t))
	type list = []any
	type fields = map[string]any
	for name, job := range monitoredJobs(t) {
		up := func(instance, values string) any {
			return fields{"series": fmt.Sprintf("up{job=%q, instance=%q}", job, instance), "values": values}
		}
		// test expects that ServiceProxyDown fires or not, and ServiceProxyDownOnNode for some instances.
		test := func(name string, down bool, instances list, series ...any) any {
			all, nodes := list{}, list{}
			if down {
				all = list{fields{"exp_labels": fields{"severity": "critical"}, "exp_annotations": annotations(t, "ServiceProxyDown", "")}}
			}
			for _, i := range instances {
				nodes = append(nodes, fields{
					"exp_labels":      fields{"severity": "warning", "job": job, "instance": i},
					"exp_annotations": annotations(t, "ServiceProxyDownOnNode", i.(string)),
				})
			}
			return fields{"name": name, "interval": "1m", "input_series": series, "alert_rule_test": list{
				fields{"eval_time": "30m", "alertname": "ServiceProxyDown", "exp_alerts": all},
				fields{"eval_time": "30m", "alertname": "ServiceProxyDownOnNode", "exp_alerts": nodes},
			}}
		}
		tests := write(name+".yaml", fields{
			"rule_files":          list{"rules.yaml"},
			"evaluation_interval": "1m",
			"tests": list{
				test("all answer", false, nil, up("a", "1+0x60"), up("b", "1+0x60")),
				test("one answers", false, list{"a"}, up("a", "0+0x60"), up("b", "1+0x60")),
				test("none answers", true, list{"a", "b"}, up("a", "0+0x60"), up("b", "0+0x60")),
				test("nothing is scraped", true, nil),
			},
		})
		if out, err := exec.CommandContext(t.Context(), promtool, "test", "rules", tests).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}

// faults are what makes a scrape of a proxy sick, by the alert that is to fire, and by no other one.
var faults = map[string]map[string]string{
	"ServiceProxyFallsBehind":            {"kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds": "100+60x60"},
	"ServiceProxyChangesPending":         {"kubeproxy_sync_proxy_rules_service_changes_pending": "3x60"},
	"ServiceProxyProgrammingSlow":        {`kubeproxy_network_programming_duration_seconds_bucket{le="10"}`: "0+2x60", `kubeproxy_network_programming_duration_seconds_bucket{le="+Inf"}`: "0+200x60"},
	"ServiceProxySessionAffinityFull":    {"slipstream_session_affinity_unrecorded_total": "0+10x60"},
	"ServiceProxyLimitsFull":             {"slipstream_limits_unrecorded_total": "0+10x60"},
	"ServiceProxySessionAffinityFillsUp": {"slipstream_session_affinity_clients": "250000x60"},
	"ServiceProxySyncFailures":           {`slipstream_sync_failures_total{kind="full"}`: "0+1x60"},
	"ServiceProxyPartialFailures":        {`slipstream_sync_failures_total{kind="change"}`: "0+1x60"},
	"ServiceProxyDamaged":                {"slipstream_repairs_total": "0+1x60"},
	"ServiceProxyUnhealthy":              {`kubeproxy_proxy_livez_total{code="503"}`: "0+1x60"},
	"ServiceProxyConntrackFailures":      {"slipstream_conntrack_failures_total": "0+1x60"},
	"ServiceProxyLostAPIServer":          {"slipstream_api_last_heard_timestamp_seconds": "100x60"},
	"ServiceProxyDiffers":                {"slipstream_verify_differences": "2x60"},
	"ServiceProxyCannotVerify":           {`slipstream_verify_runs_total{result="failed"}`: "0+1x60", "slipstream_verify_last_success_timestamp_seconds": "0x60"},
	"ServiceProxyFeatureMissing":         {`slipstream_kernel_feature_missing{mode="nftables",family="IPv6",feature="chain type nat"}`: "1x60"},
	"ServiceProxySocketsNotAttached":     {"slipstream_sockets_attached": "0x60"},
	"ServiceProxyInvalidObjects":         {"slipstream_object_problems_total": "0+1x60"},
	"ServiceProxyNotWell":                {`slipstream_problem{reason="Hangs"}`: "1x60"},
	"NodeConntrackFillsUp":               {"slipstream_conntrack_entries": "250000x60"},
	"ServiceProxyDownOnNode":             {"up": "0x60"},
	"FastPathUnsupported":                {"slipstream_fastpath_supported": "0x60"},
	"FastPathFellOff":                    {"slipstream_fastpath_interfaces": "1x60"},
	"FastPathDoesNotFollow":              {"slipstream_fastpath_errors_total": "0+1x60"},
}

// healthy is a scrape of a proxy that is well.
var healthy = map[string]string{
	"up": "1x60", `slipstream_problem{reason="Hangs"}`: "0x60", "slipstream_conntrack_entries": "1000x60", "slipstream_conntrack_entries_max": "262144x60",
	"kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds": "100x60", "kubeproxy_sync_proxy_rules_last_timestamp_seconds": "101x60",
	"kubeproxy_sync_proxy_rules_endpoint_changes_pending": "0x60", "kubeproxy_sync_proxy_rules_service_changes_pending": "0x60",
	`kubeproxy_network_programming_duration_seconds_bucket{le="0.25"}`: "0+10x60", `kubeproxy_network_programming_duration_seconds_bucket{le="10"}`: "0+10x60",
	`kubeproxy_network_programming_duration_seconds_bucket{le="+Inf"}`: "0+10x60",
	"slipstream_session_affinity_unrecorded_total":                     "0x60", "slipstream_limits_unrecorded_total": "0x60", "slipstream_session_affinity_clients": "10x60", "slipstream_session_affinity_clients_max": "262144x60",
	`slipstream_sync_failures_total{kind="full"}`: "0x60", `slipstream_sync_failures_total{kind="change"}`: "0x60", "slipstream_repairs_total": "0x60",
	`kubeproxy_proxy_livez_total{code="200"}`: "0+6x60", `kubeproxy_proxy_livez_total{code="503"}`: "0x60", "slipstream_conntrack_failures_total": "0x60",
	"slipstream_api_last_heard_timestamp_seconds": "0+60x60", "slipstream_verify_differences": "0x60", `slipstream_verify_runs_total{result="failed"}`: "0x60",
	"slipstream_verify_last_success_timestamp_seconds": "0+60x60", "slipstream_sockets_attached": "1x60", "slipstream_object_problems_total": "0x60",
	"slipstream_fastpath_supported": "1x60", "slipstream_fastpath_interfaces": "12x60", "slipstream_fastpath_offloads_total": "0+100x60", "slipstream_fastpath_errors_total": "0x60",
}

// TestAlertsOfFaults checks with promtool that each alert about a proxy fires for its own fault and for no other
// one, and that none fires for a proxy beside it that is well, with the job that the ServiceMonitors of the base and of the
// chart give. An alert without a fault here fails the test.
func TestAlertsOfFaults(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Fatalf("%v (test/deps.sh installs it)", err)
	}
	for name, job := range monitoredJobs(t) {
		t.Run(name, func(t *testing.T) { alertsOfFaults(t, promtool, job) })
	}
}

func alertsOfFaults(t *testing.T, promtool, job string) {
	rules, dir := alertRules(t), t.TempDir()
	type list = []any
	type fields = map[string]any
	series := func(metrics map[string]string, instance string) (all list) {
		for name, values := range metrics {
			name, labels, _ := strings.Cut(name, "{")
			all = append(all, fields{"series": fmt.Sprintf("%s{job=%q,instance=%q,%s", name, job, instance, labels+strings.Repeat("}", 1-strings.Count(labels, "}"))), "values": values})
		}
		return all
	}
	var expressions list
	for _, g := range rules.Groups {
		for i := range g.Rules {
			r := &g.Rules[i]
			r.Annotations = nil // TestAlerts has some
			if r.Alert == "ServiceProxyDown" {
				continue // of all nodes
			}
			if faults[r.Alert] == nil {
				t.Errorf("no fault of this test makes %s fire", r.Alert)
			}
			expressions = append(expressions, r.Alert)
		}
	}
	var tests list
	for fault, sick := range faults {
		metrics := maps.Clone(healthy)
		maps.Copy(metrics, sick)
		var fire list
		for _, alert := range expressions {
			n := "0"
			if alert == fault {
				n = "1"
			}
			fire = append(fire, fields{"expr": fmt.Sprintf("count(ALERTS{alertname=%q,alertstate=%q,instance=%q}) or vector(0)", alert, "firing", "sick"), "eval_time": "50m", "exp_samples": list{fields{"labels": "{}", "value": json.Number(n)}}})
		}
		fire = append(fire, fields{"expr": `count(ALERTS{alertstate="firing",instance!="sick"}) or vector(0)`, "eval_time": "50m", "exp_samples": list{fields{"labels": "{}", "value": 0}}})
		tests = append(tests, fields{"name": fault, "interval": "1m", "input_series": append(series(metrics, "sick"), series(healthy, "well")...), "promql_expr_test": fire})
	}
	for name, content := range map[string]any{"rules.yaml": rules, "tests.yaml": fields{"rule_files": list{"rules.yaml"}, "evaluation_interval": "1m", "tests": tests}} {
		text, err := yaml.Marshal(content)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.CommandContext(t.Context(), promtool, "test", "rules", filepath.Join(dir, "tests.yaml")).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestRunbook checks that each alert leads to an entry of docs/runbook.md, and each entry is of an alert.
func TestRunbook(t *testing.T) {
	text, err := os.ReadFile("../../../docs/runbook.md")
	if err != nil {
		t.Fatal(err)
	}
	entries := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^## (\w+)$`).FindAllStringSubmatch(string(text), -1) {
		entries[m[1]] = true
	}
	for _, g := range alertRules(t).Groups {
		for _, r := range g.Rules {
			if !entries[r.Alert] {
				t.Errorf("no entry of %s", r.Alert)
			}
			delete(entries, r.Alert)
			if url := r.Annotations["runbook_url"]; !strings.HasSuffix(url, "/docs/runbook.md#"+strings.ToLower(r.Alert)) {
				t.Errorf("%s: runbook_url %q", r.Alert, url)
			}
		}
	}
	for name := range entries {
		t.Errorf("an entry of %s, which is no alert", name)
	}
}

// annotations are those of an alert for an instance.
func annotations(t *testing.T, alert, instance string) map[string]string {
	t.Helper()
	for _, g := range alertRules(t).Groups {
		for _, r := range g.Rules {
			if r.Alert != alert {
				continue
			}
			for name, text := range r.Annotations {
				r.Annotations[name] = strings.ReplaceAll(text, "{{ $labels.instance }}", instance)
			}
			return r.Annotations
		}
	}
	t.Fatalf("there is no alert %s", alert)
	return nil
}
