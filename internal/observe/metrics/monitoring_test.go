// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"sigs.k8s.io/yaml"
)

// metricName matches names of metrics in an expression or in prose.
var metricName = regexp.MustCompile(`\b(?:kubeproxy|slipstream|kubernetes|rest_client|process|go)_[a-z0-9_]+\b`)

// names are the metrics that expressions can name.
func names(t *testing.T) map[string]bool {
	known := map[string]bool{
		// Metrics of client-go, which need an API server.
		"rest_client_requests_total":                  true,
		"rest_client_request_duration_seconds_bucket": true,
	}
	for _, mode := range modes {
		for name, f := range gathered(t, complete(mode)) {
			known[name] = true
			if f.GetType() == dto.MetricType_HISTOGRAM {
				known[name+"_bucket"], known[name+"_sum"], known[name+"_count"] = true, true, true
			}
		}
	}
	return known
}

func check(t *testing.T, known map[string]bool, where, text string) {
	t.Helper()
	for _, name := range metricName.FindAllString(text, -1) {
		if !known[name] {
			t.Errorf("%s: there is no metric %s", where, name)
		}
	}
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	text, err := os.ReadFile("../../../deploy/monitoring/" + file)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestDashboard finds each metric that the dashboard asks for.
func TestDashboard(t *testing.T) {
	known := names(t)
	text := read(t, "dashboard.json")
	check(t, known, "dashboard.json", string(text))
	var dashboard struct {
		Panels []struct {
			ID      int
			Type    string
			Title   string
			GridPos struct{ X, Y, W, H int }
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	seen, taken := map[int]bool{}, map[[2]int]string{}
	for _, p := range dashboard.Panels {
		if seen[p.ID] {
			t.Errorf("panel %q: another one has the id %d", p.Title, p.ID)
		}
		seen[p.ID] = true
		if p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("panel %q shows nothing", p.Title)
		}
		for _, target := range p.Targets {
			if !metricName.MatchString(target.Expr) {
				t.Errorf("panel %q: no metric in %q", p.Title, target.Expr)
			}
		}
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := taken[[2]int{x, y}]; other != "" || x >= 24 {
					t.Fatalf("panel %q lies over %q, or beyond the edge", p.Title, other)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
	}
	if len(seen) < 20 {
		t.Errorf("only %d panels", len(seen))
	}
}

// TestRules finds each metric that the alerts ask for.
func TestRules(t *testing.T) {
	known := names(t)
	text := read(t, "rules.yaml")
	check(t, known, "rules.yaml", string(text))
	var rules struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Metadata   map[string]any
		Spec       struct {
			Groups []struct {
				Name  string
				Rules []struct {
					Alert, Expr, For    string
					Labels, Annotations map[string]string
				}
			}
		}
	}
	if err := yaml.UnmarshalStrict(text, &rules); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, g := range rules.Spec.Groups {
		for _, r := range g.Rules {
			if seen[r.Alert] || r.Alert == "" || r.Labels["severity"] == "" || r.Annotations["summary"] == "" {
				t.Errorf("group %s: alert %q lacks something, or there are two", g.Name, r.Alert)
			}
			seen[r.Alert] = true
			if !strings.HasPrefix(r.Alert, "ServiceProxyDown") && !metricName.MatchString(r.Expr) {
				t.Errorf("alert %s: no metric in %q", r.Alert, r.Expr)
			}
		}
	}
	if len(seen) < 10 {
		t.Errorf("only %d alerts", len(seen))
	}
}
