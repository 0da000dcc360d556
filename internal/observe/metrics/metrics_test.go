// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"bufio"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/slipstream-proxy/slipstream/internal/config"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"k8s.io/apimachinery/pkg/types"
)

// localhost is nftables mode with the feature gate KubeProxyNFTablesLocalhostNodePorts.
const localhost = config.NFTables + "+localhost"

// modes are all modes.
var modes = []string{config.NFTables, localhost, config.IPTables, config.IPVS}

// complete are metrics of a mode, of which each has a value.
func complete(mode string) *Metrics {
	m := New()
	if mode == localhost {
		mode = config.NFTables
		m.OnLocalhostNodePorts(func() (n [2]map[desired.Protocol]uint64, err error) { return n, nil })
	}
	m.OnMode(config.TraitsOf(mode).Metrics)
	m.OnBuild("v1.2.3")
	m.OnVerify()
	m.OnAPI(func() time.Time { return time.Time{} })
	m.OnHealth([]string{"Hangs"}, func() ([]string, int, int, error) { return nil, 0, 0, nil })
	m.OnSockets(func() (bool, uint64, int, error) { return false, 0, 0, nil })
	m.OnFastPath(func() (FastPath, error) { return FastPath{Supported: true}, nil })
	m.OnFlows(func() (map[types.NamespacedName]int, error) { return map[types.NamespacedName]int{{}: 1}, nil })
	m.OnTraffic(func() (map[types.NamespacedName]Traffic, error) {
		return map[types.NamespacedName]Traffic{named(1): {1, 2, 3, 4, 5}}, nil
	})
	if mode != config.IPTables { // IPVS mode has nftables mode's table
		m.OnNFTables(func() (NFTables, error) {
			return NFTables{
				Rejected: [2]map[string]uint64{{"no_endpoints": 1}, {"no_endpoints": 2}}, Unrecorded: [2]uint64{1, 2}, Unlimited: [2]uint64{1, 2},
				Affinity: [2]Affinity{{1, 3, 1}, {2, 3, 1}},
			}, nil
		})
	}
	if mode == config.IPTables {
		m.OnIPTables(func() (IPTables, error) {
			return IPTables{
				Total: [2]map[string]int{{"nat": 3}, {"nat": 4}}, Last: [2]map[string]int{{"nat": 1}, {"nat": 2}},
				Rejected: [2]map[string]uint64{{"no_endpoints": 1}, {"no_endpoints": 2}},
			}, nil
		})
	}
	m.FeatureMissing.WithLabelValues(mode, "IPv6", "chain type nat").Set(1)
	m.SetContested(map[types.NamespacedName]int{{Namespace: "ns", Name: "web"}: 1})
	m.Healthz(200)
	m.Livez(503)
	return m
}

// gathered are the families of metrics by name.
func gathered(t *testing.T, m *Metrics) map[string]*dto.MetricFamily {
	t.Helper()
	all, err := m.gather().Gather()
	if err != nil {
		t.Fatal(err)
	}
	byName := map[string]*dto.MetricFamily{}
	for _, f := range all {
		byName[f.GetName()] = f
	}
	return byName
}

// labelsOf are the names of a family's labels.
func labelsOf(f *dto.MetricFamily) (names []string) {
	for _, l := range f.Metric[0].Label {
		names = append(names, l.GetName())
	}
	slices.Sort(names)
	return names
}

// TestLikeKubeProxy compares names, types, labels and buckets with those that
// kube-proxy v1.37.1 registers in each mode.
func TestLikeKubeProxy(t *testing.T) {
	for _, mode := range modes {
		want := map[string]string{}
		f, err := os.Open("testdata/kube-proxy.txt")
		if err != nil {
			t.Fatal(err)
		}
		for s := bufio.NewScanner(f); s.Scan(); {
			if fields := strings.Fields(s.Text()); len(fields) >= 3 && fields[0] != "#" {
				of := strings.Split(fields[0], ",")
				base, _, _ := strings.Cut(mode, "+")
				if fields[0] == "all" || slices.Contains(of, mode) || slices.Contains(of, base) {
					want[fields[1]] = strings.Join(fields[2:], " ")
				}
			}
		}
		f.Close()
		if len(want) < 15 {
			t.Fatalf("only %d metrics of mode %s in testdata", len(want), mode)
		}
		have := map[string]string{}
		for name, f := range gathered(t, complete(mode)) {
			if !strings.HasPrefix(name, "kubeproxy_") && name != "kubernetes_build_info" {
				continue
			}
			words := []string{strings.ToLower(f.GetType().String()), strings.Join(labelsOf(f), ",")}
			if words[1] == "" {
				words[1] = "-"
			}
			if h := f.Metric[0].Histogram; h != nil {
				var bounds []string
				for _, b := range h.Bucket {
					bounds = append(bounds, strconv.FormatFloat(b.GetUpperBound(), 'g', -1, 64))
				}
				words = append(words, strings.Join(bounds, ","))
			}
			have[name] = strings.Join(words, " ")
		}
		for name, w := range want {
			if !notCounted[name] && have[name] != w {
				t.Errorf("mode %s: %s is\n  %q, want\n  %q", mode, name, have[name], w)
			}
		}
		for name := range have {
			if want[name] == "" {
				t.Errorf("mode %s: kube-proxy has no %s", mode, name)
			}
		}
	}
}

// notCounted are metrics that kube-proxy reads from nfacct, which Slipstream does not use.
var notCounted = map[string]bool{
	"kubeproxy_iptables_localhost_nodeports_accepted_packets_total": true,
}

// row is a line of a table in docs/metrics.md: names, type, labels.
var row = regexp.MustCompile("^\\| (`[a-z][^|]*`) \\|\\s*([a-z]*)\\s*\\|([^|]*)\\|")

// TestDocumented checks that docs/metrics.md lists all metrics and no others.
func TestDocumented(t *testing.T) {
	text, err := os.ReadFile("../../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	type entry struct {
		kind, labels string
		seen         bool
	}
	documented := map[string]*entry{}
	for line := range strings.Lines(string(text)) {
		if m := row.FindStringSubmatch(line); m != nil {
			for name := range strings.SplitSeq(m[1], ", ") {
				documented[strings.Trim(name, "`")] = &entry{kind: m[2], labels: strings.TrimSpace(strings.ReplaceAll(m[3], "`", ""))}
			}
		}
	}
	if len(documented) < 40 {
		t.Fatalf("only %d rows found", len(documented))
	}
	for _, mode := range modes {
		for name, f := range gathered(t, complete(mode)) {
			if e := documented[name]; e != nil {
				e.seen = true
				kind := strings.ToLower(f.GetType().String())
				labels := strings.Split(e.labels, ", ")
				slices.Sort(labels)
				ours := strings.HasPrefix(name, "slipstream_") || strings.HasPrefix(name, "kube")
				if got := labelsOf(f); e.kind != kind || ours && strings.Join(got, " ") != strings.Join(labels, " ") {
					t.Errorf("%s is a %s with labels %v, documented is a %s with %v", name, kind, got, e.kind, labels)
				}
				continue
			}
			if !matchesAny(documented, name) {
				t.Errorf("%s is not documented", name)
			}
		}
	}
	for name, e := range documented {
		// The metrics of client-go have no values without an API server.
		if !e.seen && !strings.Contains(name, "*") && !strings.HasPrefix(name, "rest_client_") && !libraryAlone[name] {
			t.Errorf("%s is documented, and does not exist", name)
		}
	}
}

// libraryAlone are metrics without a value for as long as nothing special happens.
var libraryAlone = map[string]bool{
	"kubernetes_feature_enabled": true, "hidden_metrics_total": true, "disabled_metrics_total": true, "cardinality_enforcement_unexpected_categorizations_total": true,
}

// matchesAny says whether a name matches a pattern that is documented, "go_*".
func matchesAny[T any](documented map[string]T, name string) bool {
	for pattern := range documented {
		if ok, _ := path.Match(pattern, name); ok && strings.Contains(pattern, "*") {
			return true
		}
	}
	return false
}

// TestNothingOfKubeProxyBesideIt checks that a fast path that runs alone has none of
// kube-proxy's metrics.
func TestNothingOfKubeProxyBesideIt(t *testing.T) {
	for name := range gathered(t, New()) {
		if strings.HasPrefix(name, "kubeproxy_") {
			t.Errorf("%s is there without a mode", name)
		}
	}
}

func TestBuildInfo(t *testing.T) {
	f := gathered(t, complete(config.NFTables))["kubernetes_build_info"]
	labels := map[string]string{}
	for _, l := range f.Metric[0].Label {
		labels[l.GetName()] = l.GetValue()
	}
	if labels["major"] != "1" || labels["minor"] != "37" || labels["git_version"] != "v1.2.3" || labels["go_version"] == "" {
		t.Errorf("%v", labels)
	}
}

// TestRefusedInAMode counts one refusal where kube-proxy would in each mode.
func TestRefusedInAMode(t *testing.T) {
	for mode, want := range map[string]string{
		config.NFTables: "kubeproxy_sync_proxy_rules_nftables_sync_failures_total",
		config.IPTables: "kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total",
		config.IPVS:     "kubeproxy_sync_proxy_rules_iptables_restore_failures_total",
	} {
		m := complete(mode)
		m.Refused(false, desired.Families{false, true}, time.Second)
		var got []float64
		for _, metric := range gathered(t, m)[want].Metric {
			got = append(got, metric.Counter.GetValue())
		}
		if !slices.Equal(got, []float64{0, 1}) {
			t.Errorf("mode %s: %s by family is %v", mode, want, got)
		}
	}
}

// TestKernelCountersGrow resets the kernel's counters to 0, as a new ruleset does. The metrics
// must not decrease.
func TestKernelCountersGrow(t *testing.T) {
	m := New()
	var now NFTables
	m.OnNFTables(func() (NFTables, error) { return now, nil })
	for _, step := range []struct{ kernel, want uint64 }{{5, 5}, {7, 7}, {0, 7}, {2, 9}, {1, 10}} {
		now = NFTables{Rejected: [2]map[string]uint64{{"no_endpoints": step.kernel}, {"no_endpoints": 1000}}, Unrecorded: [2]uint64{step.kernel, 0}, Unlimited: [2]uint64{step.kernel, 0}}
		all := gathered(t, m)
		for _, name := range []string{"slipstream_rejected_packets_total", "slipstream_session_affinity_unrecorded_total", "slipstream_limits_unrecorded_total"} {
			if got := all[name].Metric[0].Counter.GetValue(); got != float64(step.want) {
				t.Errorf("%s is %v after the kernel's %d, want %d", name, got, step.kernel, step.want)
			}
		}
	}
}
