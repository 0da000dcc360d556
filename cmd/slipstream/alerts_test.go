// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/config"
	"github.com/slipstream-proxy/slipstream/internal/fastpath"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"github.com/slipstream-proxy/slipstream/internal/socket"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"sigs.k8s.io/yaml"
)

// scrapes are two of one proxy. What has changed between them is taken for the change of a minute.
type scrapes struct {
	before, after     map[string]float64
	beforeAt, afterAt time.Time
}

var sample = regexp.MustCompile(`(?m)^([a-z_]+)(?:\{(.*)\})? (\S+)$`)

// scrape reads the metrics; those of a proxy that does not answer are only up.
func (s *site) scrape() (map[string]float64, time.Time) {
	s.t.Helper()
	at, all := time.Now(), map[string]float64{"up{}": 0}
	text, err := s.getPage("127.0.0.1:10249", "/metrics")
	if err != nil {
		return all, at
	}
	all["up{}"] = 1
	for _, m := range sample.FindAllStringSubmatch(text, -1) {
		if value, err := strconv.ParseFloat(m[3], 64); err == nil {
			all[m[1]+"{"+m[2]+"}"] = value
		}
	}
	return all, at
}

// monitoredJob is the label job that the ServiceMonitor gives. deploy's TestAgree checks that the chart renders the same one.
func monitoredJob(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../deploy/kustomize/monitoring/monitoring.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for one := range strings.SplitSeq(string(text), "\n---\n") {
		var m struct {
			Kind string
			Spec struct {
				Endpoints []struct {
					Relabelings []struct{ TargetLabel, Replacement string }
				}
			}
		}
		if err := yaml.Unmarshal([]byte(one), &m); err != nil {
			t.Fatal(err)
		}
		if m.Kind == "ServiceMonitor" {
			if r := m.Spec.Endpoints[0].Relabelings; len(r) == 1 && r[0].TargetLabel == "job" {
				return r[0].Replacement
			}
		}
	}
	t.Fatal("no ServiceMonitor with a relabeling of the job alone")
	return ""
}

// series are a proxy's, for an hour of promtool's time, which begins at 0.
func (s *scrapes) series(job, instance string) (all []any) {
	for name, v := range s.after {
		was, existed := s.before[name]
		step := v - was
		if !existed {
			step = 0
		}
		if metric, _, _ := strings.Cut(name, "{"); strings.HasSuffix(metric, "timestamp_seconds") {
			v -= float64(s.afterAt.UnixMilli()) / 1000
			if step > 0 {
				step = 60
			}
		}
		labels := strings.Replace(name, "{", fmt.Sprintf("{job=%q,instance=%q,", job, instance), 1)
		if text := strconv.FormatFloat(step, 'f', -1, 64); !strings.ContainsAny(text, "NI") && !strings.ContainsAny(fmt.Sprint(v), "NI") {
			all = append(all, map[string]any{"series": labels, "values": fmt.Sprintf("%s%+fx60", strconv.FormatFloat(v, 'f', 6, 64), step)})
		}
	}
	return all
}

// untold are the alerts that this test makes no proxy sick for. deploy's TestAlertsOfFaults has written series for them.
var untold = map[string]string{
	"ServiceProxyDown":                   "it is about all proxies",
	"ServiceProxySessionAffinityFull":    "a Service may have thousands of clients",
	"ServiceProxySessionAffinityFillsUp": "a node may have hundreds of thousands of clients",
	"ServiceProxyLimitsFull":             "a Service may have thousands of clients",
	"ServiceProxyCannotVerify":           "nobody can keep root from reading nf_tables",
	"ServiceProxyConntrackFailures":      "nobody can keep root from deleting conntrack entries",
	"NodeConntrackFillsUp":               "the limit is the machine's, so only a kernel of its own can be filled",
}

// sickness makes a proxy sick. The alerts fire for it, and no others.
type sickness struct {
	name   string
	alerts string
	args   []string
	lacks  string               // features, for startLacking
	prefix []string             // a command that starts the proxy
	alone  bool                 // the proxy has no manifests
	before func(s *site)        // it starts
	make   func(s *site, n int) // it sick, before each scrape
	ready  func(s *site) bool   // it is sick
}

// pace is more than the second in which some times are counted.
const pace = 1200 * time.Millisecond

// own makes a table belong to the test, so that nobody else can change it.
func own(s *site, table nfnl.Table) {
	s.t.Helper()
	conn, err := nfnl.Dial(s.node.FD())
	s.check(err)
	s.t.Cleanup(func() { conn.Close() })
	var b nfnl.Batch
	b.AddOwnedTable(table)
	s.check(conn.Commit(0, &b))
}

// late changes endpoints, and says that they had changed 12 seconds before, when the proxy ran already.
func late() func(*site, int) {
	var at time.Time
	return func(s *site, n int) {
		if n == 0 {
			at = time.Now()
			time.Sleep(12 * time.Second)
		}
		annotation := fmt.Sprintf("metadata: {name: web, annotations: {endpoints.kubernetes.io/last-change-trigger-time: %q}, labels", at.UTC().Format(time.RFC3339Nano))
		s.save("web.yaml", strings.Replace(web(n+1), "metadata: {name: web, labels", annotation, 1))
	}
}

// has reports whether the metrics have a line that begins so.
func has(line string) func(*site) bool {
	return func(s *site) bool { return strings.Contains(s.ask("127.0.0.1:10249", "/metrics"), "\n"+line) }
}

var sicknesses = []sickness{
	{name: "it was killed", alerts: "ServiceProxyDownOnNode", make: func(s *site, n int) {
		if n == 0 {
			s.check(s.proxy.Kill())
			<-s.proxy.Done()
		}
	}},
	{name: "the kernel refuses everything", alerts: "ServiceProxySyncFailures ServiceProxyNotWell ServiceProxyFallsBehind ServiceProxyChangesPending", args: []string{"--check-period", "50ms"},
		make: func(s *site, n int) {
			if n == 0 {
				s.nft("delete table ip slipstream")
				own(s, nfnl.Table{Family: nfnl.IPv4, Name: "slipstream"})
			}
			s.save("web.yaml", web(n%3))
		}, ready: has(`slipstream_problem{reason="Refused"} 1`)},
	{name: "a change has waited for too long", alerts: "ServiceProxySyncFailures ServiceProxyNotWell ServiceProxyFallsBehind ServiceProxyChangesPending ServiceProxyUnhealthy",
		args: []string{"--check-period", "50ms", "--iptables-sync-period", "100ms", "--healthz-bind-address", "127.0.0.1:10256"},
		make: func(s *site, n int) {
			if n == 0 {
				s.nft("delete table ip slipstream")
				own(s, nfnl.Table{Family: nfnl.IPv4, Name: "slipstream"})
			}
			s.save("web.yaml", web(n%3))
			s.until("it is not healthy", func() bool {
				status, _, err := request(s.node.Do, "127.0.0.1:10256", "/livez")
				return err == nil && strings.HasPrefix(status, "503")
			})
		}, ready: has(`slipstream_problem{reason="Refused"} 1`)},
	{name: "changes arrive late", alerts: "ServiceProxyProgrammingSlow ServiceProxyNotWell", make: late(),
		ready: has(`slipstream_problem{reason="Late"} 1`)},
	{name: "a change is refused", alerts: "ServiceProxyPartialFailures", args: []string{"--check-period", "1h"}, make: func(s *site, n int) {
		s.nft("delete table ip slipstream")
		s.save("web.yaml", web(n%3, (n+1)%3))
		s.until("it was refused", func() bool { return has(fmt.Sprintf(`slipstream_sync_failures_total{kind="change"} %d`, n+1))(s) })
	}},
	{name: "its table is deleted again and again", alerts: "ServiceProxyDamaged", args: []string{"--check-period", "20ms"}, make: func(s *site, n int) {
		s.nft("delete table ip slipstream")
		s.until("it was repaired", func() bool { return has(fmt.Sprintf("slipstream_repairs_total %d", n+1))(s) })
	}},
	{name: "the API server is gone", alerts: "ServiceProxyLostAPIServer ServiceProxyNotWell", alone: true, args: []string{"--master", "http://127.0.0.1:1"}, ready: has(`slipstream_problem{reason="NotSynced"} 1`)},
	{name: "RBAC is missing", alerts: "ServiceProxyLostAPIServer ServiceProxyNotWell", alone: true, args: []string{"--master", "http://127.0.0.1:6443"}, before: func(s *site) {
		forbidden := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":"services is forbidden"}`)
		})}
		var l net.Listener
		s.check(s.node.Do(func() (err error) { l, err = net.Listen("tcp", "127.0.0.1:6443"); return err }))
		go forbidden.Serve(l)
		s.t.Cleanup(func() { forbidden.Close() })
	}, ready: has(`slipstream_problem{reason="NotSynced"} 1`)},
	{name: "verify finds a difference", alerts: "ServiceProxyDiffers", args: []string{"--check-period", "1h", "--verify-period", "20s"}, make: func(s *site, n int) {
		if n == 0 {
			s.shell(misdirect[config.NFTables])
		}
	}, ready: has("slipstream_verify_differences 2")},
	{name: "a feature of the kernel is missing", alerts: "ServiceProxyFeatureMissing", lacks: "IPv6"},
	{name: "a bad annotation", alerts: "ServiceProxyInvalidObjects", make: func(s *site, n int) {
		s.save("web.yaml", strings.Replace(web(0), "metadata: {name: web}", fmt.Sprintf("metadata: {name: web, annotations: {slipstream.io/slow-start: bad%d}}", n), 1))
		s.until("it is reported", func() bool { return has(fmt.Sprintf("slipstream_object_problems_total %d", n+1))(s) })
	}},
	{name: "no cgroup for the programs of sockets", alerts: "ServiceProxySocketsNotAttached", args: []string{"--socket-load-balancing", "tcp"},
		prefix: []string{"unshare", "-m", "sh", "-c", `grep cgroup2 /proc/self/mounts | while read d m r; do umount -l $m; done; exec "$@"`, "sh"}},
	{name: "the fast path is not possible here", alerts: "FastPathUnsupported", args: []string{"--fast-path-engine", "flowtable"}},
	{name: "no interface is on the fast path", alerts: "FastPathFellOff", args: []string{"--interfaces", "interface.name == 'none'"}},
	{name: "the fast path's table belongs to another program", alerts: "FastPathDoesNotFollow FastPathFellOff", before: func(s *site) {
		own(s, nfnl.Table{Family: nfnl.INET, Name: fastpath.TableName})
	}, make: func(s *site, _ int) { // it is tried again and again
		const metric = "slipstream_fastpath_errors_total{}"
		before, _ := s.scrape()
		s.until("there is another error", func() bool { now, _ := s.scrape(); return now[metric] > before[metric] })
	}},
}

// TestAlertsOfSickProxies makes proxies sick, and has promtool evaluate the alerts on what they say of themselves, beside a
// proxy that is well, as the ServiceMonitor has them scraped: each alert fires for its sicknesses and for no other ones.
func TestAlertsOfSickProxies(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTBinary, kerneltest.TCX)
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("NOT RUN: no promtool; test/deps.sh installs it")
	}
	var all []scrapes
	for _, c := range append([]sickness{{name: "well"}}, sicknesses...) {
		t.Run(c.name, func(t *testing.T) { all = append(all, c.scrapes(t)) })
	}
	if t.Failed() {
		return
	}
	text, err := os.ReadFile("../../deploy/monitoring/rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var object struct {
		Spec struct {
			Groups []struct {
				Name  string           `json:"name"`
				Rules []map[string]any `json:"rules"`
			} `json:"groups"`
		}
	}
	if err := yaml.Unmarshal(text, &object); err != nil {
		t.Fatal(err)
	}
	type list = []any
	type fields = map[string]any
	var alerts []string
	for _, g := range object.Spec.Groups {
		for _, r := range g.Rules {
			delete(r, "annotations")
			alerts = append(alerts, r["alert"].(string))
		}
	}
	fires, tests, job := map[string]bool{}, list{}, monitoredJob(t)
	for i, c := range sicknesses {
		var expected list
		for _, alert := range alerts {
			n := 0
			if slices.Contains(strings.Fields(c.alerts), alert) {
				n, fires[alert] = 1, true
			}
			expected = append(expected, fields{"expr": fmt.Sprintf("count(ALERTS{alertname=%q,alertstate=%q,instance=%q}) > bool 0 or vector(0) # %s", alert, "firing", "sick", c.name), "eval_time": "58m",
				"exp_samples": list{fields{"labels": "{}", "value": n}}})
		}
		expected = append(expected, fields{"expr": `count(ALERTS{alertstate="firing",instance!="sick"}) or vector(0)`, "eval_time": "58m", "exp_samples": list{fields{"labels": "{}", "value": 0}}})
		tests = append(tests, fields{"name": c.name, "interval": "1m", "input_series": append(all[i+1].series(job, "sick"), all[0].series(job, "well")...), "promql_expr_test": expected})
	}
	for _, alert := range alerts {
		if !fires[alert] && untold[alert] == "" {
			t.Errorf("no sickness makes %s fire", alert)
		}
	}
	for alert := range maps.Keys(untold) {
		if fires[alert] || !slices.Contains(alerts, alert) {
			t.Errorf("%s need not be excused", alert)
		}
	}
	dir := t.TempDir()
	files := fields{"rules.yaml": object.Spec, "tests.yaml": fields{"rule_files": list{"rules.yaml"}, "evaluation_interval": "1m", "tests": tests}}
	for name, content := range files {
		text, err := json.Marshal(content) // which is YAML
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

func (c *sickness) scrapes(t *testing.T) (two scrapes) {
	s := newSite(t)
	s.save("web.yaml", web(0))
	if c.before != nil {
		c.before(s)
	}
	args := []string{"--metrics-bind-address", "127.0.0.1:10249", "--proxy-mode", "nftables", "--conntrack-max-per-core", "0", "--status-socket", socketPath(t)}
	if !slices.Contains(c.args, "--fast-path-engine") {
		args = append(args, "--fast-path-engine", "ebpf")
	}
	if !c.alone {
		args = append(args, "--manifests", s.dir)
	}
	cmd := s.command(append([]string{"run", "--hostname-override", "n1"}, append(args, c.args...)...)...)
	if c.lacks != "" {
		cmd.Env = append(cmd.Env, lacks+"="+c.lacks)
	}
	if len(c.prefix) > 0 {
		with := exec.Command(c.prefix[0], append(c.prefix[1:], append([]string{"/proc/self/exe"}, cmd.Args[1:]...)...)...)
		exe, err := os.Executable()
		s.check(err)
		with.Args[len(c.prefix)] = exe
		with.Env, with.Stdout, with.Stderr = cmd.Env, cmd.Stdout, cmd.Stderr
		cmd = with
	}
	p, err := s.node.Start(cmd)
	s.check(err)
	s.proxy = p
	t.Cleanup(func() {
		_ = p.Kill()
		<-p.Done()
		s.see("cleanup") // which fails to delete what belongs to the test, and goes with its namespace
		s.check(socket.Remove(s.node.FD()))
	})
	s.until("it serves metrics", func() bool { _, err := s.getPage("127.0.0.1:10249", "/metrics"); return err == nil })
	if !c.alone {
		s.untilReached("web-0")
	}
	do := func(n int) {
		if c.make != nil {
			c.make(s, n)
		}
	}
	do(0)
	if c.ready != nil {
		s.until("it is sick", func() bool { return c.ready(s) })
	}
	time.Sleep(pace)
	two.before, two.beforeAt = s.scrape()
	time.Sleep(pace)
	do(1)
	time.Sleep(pace)
	two.after, two.afterAt = s.scrape()
	return two
}
