// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/procfs"
	"github.com/slipstream-proxy/slipstream/bench/bench"
)

func TestComparison(t *testing.T) {
	for name, test := range map[string]struct {
		theirs, ours []float64
		ratio        float64
		want         string
	}{
		// 2 of 70 orders: p = 0.0286.
		"far":      {theirs: []float64{100, 101, 102, 103}, ours: []float64{1, 1.01, 1.02, 1.03}, ratio: 1.015 / 101.5, want: "1/100 of it (p = 0.029)"},
		"more":     {theirs: []float64{1, 2, 3, 4}, ours: []float64{49, 50, 51, 52}, ratio: 50.5 / 2.5, want: "20 times (p = 0.029)"},
		"less":     {theirs: []float64{10, 11, 12, 13}, ours: []float64{5, 6, 7, 8}, ratio: 6.5 / 11.5, want: "0.57 times (p = 0.029)"},
		"same":     {theirs: []float64{1, 2, 3, 4}, ours: []float64{1.5, 2.5, 2.6, 3.5}, ratio: 1.02, want: "no difference seen (p = 1)"},
		"equal":    {theirs: []float64{0, 0, 0, 0}, ours: []float64{0, 0, 0, 0}, want: "no difference seen (p = 1)"},
		"few":      {theirs: []float64{10, 10, 10}, ours: []float64{1, 1, 1}, ratio: 0.1, want: "1/10 of it; too few values to test"},
		"one each": {theirs: []float64{14}, ours: []float64{1}, ratio: 1. / 14, want: "1/14 of it; too few values to test"},
		"few, 0":   {theirs: []float64{0}, ours: []float64{0}, want: "too few values to test"},
		"shares":   {theirs: []float64{1, 2, 3, 4}, ours: []float64{11, 12, 13, 14}, want: "different (p = 0.029)"},
	} {
		if got, shown := comparison(test.theirs, test.ours, test.ratio); got != test.want || shown != (name == "far" || name == "more" || name == "less" || name == "shares") {
			t.Errorf("%s: %q, shown: %t, want %q", name, got, shown, test.want)
		}
	}
}

func TestLeastP(t *testing.T) {
	for _, test := range []struct {
		m, n int
		want float64
	}{{1, 1, 1}, {3, 3, 0.1}, {4, 4, 2. / 70}, {5, 5, 2. / 252}, {2, 8, 2. / 45}} {
		if got := leastP(test.m, test.n); got < test.want*0.9999 || got > test.want*1.0001 {
			t.Errorf("%d and %d values: %v, want %v", test.m, test.n, got, test.want)
		}
	}
}

// TestSumOthers has a tree of processes: init, a shell that runs make that runs this one, with a
// child of its own, and a compiler elsewhere with a child that has ended.
func TestSumOthers(t *testing.T) {
	stats := map[int]procfs.ProcStat{
		1:  {PPID: 0, UTime: 100},
		2:  {PPID: 0, STime: 100000}, // kthreadd
		3:  {PPID: 2, STime: 100000},
		10: {PPID: 1, UTime: 5000, CUTime: 5000}, // shell
		11: {PPID: 10, CSTime: 5000},             // make
		12: {PPID: 11, UTime: 7000},              // this one
		13: {PPID: 12, UTime: 7000},
		20: {PPID: 1, UTime: 200, STime: 100, CUTime: 300, CSTime: 50},
		21: {PPID: 20, UTime: 50},
	}
	if got, want := sumOthers(stats, 12), (200+100+300+50+50)/100.; got != want {
		t.Errorf("%v seconds, want %v", got, want)
	}
}

// TestRises has a process that used 50 s and ends in the middle, and one of 70 s that appears.
func TestRises(t *testing.T) {
	r := rises{last: 100}
	for _, used := range []float64{101, 101.5, 52, 53, 53, 123} {
		r.add(used, 4)
	}
	if r.sum != 6.5 {
		t.Errorf("%v seconds, want 6.5", r.sum)
	}
}

func init() { docs = "../../docs" }

const (
	slipNFT  = "slipstream"
	slipIPT  = "slipstream-iptables"
	slipIPVS = "slipstream-ipvs"
	kubeNFT  = "kube-proxy-nftables"
	kubeIPT  = "kube-proxy-iptables"
	kubeIPVS = "kube-proxy-ipvs"
)

// sample is a record with numbers for all that the page shows of a part.
func sampleRecords() map[string]*record {
	all := map[string]*record{}
	for _, p := range parts {
		r := &record{Part: p.Name}
		for _, s := range p.in(false) {
			r.put(&result{Name: s.name, Command: s.command, Version: "v1", Seconds: 60, Machine: bench.ThisMachine(), Result: samples(p.Name, s)})
		}
		all[p.Name] = r
	}
	return all
}

// samples has all series that the steps' commands measure, with made-up values.
func samples(part string, of step) *bench.Result {
	step := of.name
	r := &bench.Result{Machine: bench.Machine{Kernel: "6.18"}}
	subjects := map[string][]string{
		"scale": {slipNFT, slipIPT, kubeNFT, kubeIPT}, "fleet": {slipNFT, kubeNFT}, "churn": {slipNFT, kubeNFT}, "rules": {slipIPT, kubeIPT}, "balancing": {"random", "rr", "ipvs-lc", "lc"}, "failing": {"random", "lc", "detection"},
		"fastpath": {"off", "no threshold", "threshold 5", "threshold 20", "threshold 100", "threshold 300", "threshold 1000"},
		"latency":  {slipNFT, slipIPT, kubeNFT, kubeIPT},
	}[part]
	switch {
	case step == "compare-host":
		subjects = []string{"off", "eBPF", "no Service", "one link"}
	case step == "compare-qemu":
		subjects = []string{"off", "flowtable", "eBPF", "sockets", "no Service", "one link"}
	case step == "sockets-host":
		subjects = []string{"no Service", "sockets", "nftables"}
	}
	if part == "latency" && step == "ipvs" {
		subjects = []string{slipIPVS, kubeIPVS}
	}
	if _, chosen, found := strings.Cut(of.command, "--subjects "); part == "scale" && found {
		subjects = strings.Split(strings.Fields(chosen)[0], ",")
	}
	series := map[string][]bench.Series{
		"scale": {
			{Name: "start", Unit: bench.Nanoseconds}, {Name: "start_cpu", Unit: bench.Nanoseconds}, {Name: "change", Unit: bench.Nanoseconds},
			{Name: "change_cpu", Unit: bench.Nanoseconds}, {Name: "burst", Unit: bench.Nanoseconds}, {Name: "peak_rss", Unit: bench.Bytes}, {Name: "failed_share", Unit: bench.Percent},
			{Name: "sync_full", Unit: bench.Nanoseconds}, {Name: "sync_partial", Unit: bench.Nanoseconds}, {Name: "restore_rules"}, {Name: "restore_last"},
		},
		"fastpath": {
			{Name: "stream_aggregated", Unit: bench.BitsPerSecond, Better: bench.More, Paired: true}, {Name: "stream_packets", Unit: bench.BitsPerSecond, Better: bench.More, Paired: true}, {Name: "udp_packets", Unit: bench.PerSecond, Better: bench.More, Paired: true},
			{Name: "packet_cost", Unit: bench.Nanoseconds, Paired: true}, {Name: "rr_rate", Unit: bench.PerSecond, Better: bench.More, Paired: true}, {Name: "crr_rate", Unit: bench.PerSecond, Better: bench.More, Paired: true}, {Name: "crr_p99", Unit: bench.Nanoseconds, Paired: true}, {Name: "crr_median", Unit: bench.Nanoseconds, Paired: true},
		},
		"fleet": {
			{Name: "fleet_start"}, {Name: "fleet_change"}, {Name: "fleet_last", Unit: bench.Nanoseconds}, {Name: "fleet_churn"}, {Name: "fleet_cpu"}, {Name: "fleet_rest"}, {Name: "fleet_memory"},
			{Name: "server_cpu"}, {Name: "server_memory"}, {Name: "server_sent"},
		},
		"churn": {
			{Name: "fleet_churn"}, {Name: "fleet_churn_last"}, {Name: "fleet_churn_rate"}, {Name: "fleet_churn_cpu"}, {Name: "fleet_churn_received"}, {Name: "server_churn"},
		},
		"rules":     {{Name: "rules_10"}, {Name: "rules_20"}, {Name: "rules_100"}, {Name: "rules_1000"}, {Name: "rules_10000"}},
		"balancing": {{Name: "latency_p99", Unit: bench.Nanoseconds}, {Name: "latency_p50", Unit: bench.Nanoseconds}, {Name: "slow_share", Unit: bench.Percent}, {Name: "proxy_cpu", Unit: bench.Percent}},
		"failing":   {{Name: "silent_share", Unit: bench.Percent}, {Name: "refused_share", Unit: bench.Percent}, {Name: "reset_share", Unit: bench.Percent}, {Name: "error_share", Unit: bench.Percent}},
	}[part]
	if part == "latency" {
		for _, n := range []int{1, 10, 100, 1000, 10_000} {
			for _, style := range []string{"close", "keepalive"} {
				for _, what := range []string{"mean", "p50", "p99", "p999", "cpu", "errors"} {
					series = append(series, bench.Series{Name: fmt.Sprintf("%s_%s_%d", style, what, n), Unit: bench.Nanoseconds, At: n})
				}
			}
		}
	}
	unit := 1_000_000
	if part == "rules" { // values beside the lines of the chart, which must not cover each other
		unit = 30
	}
	var values []bench.Samples
	for i, name := range subjects {
		r.Subjects = append(r.Subjects, bench.Subject{Name: name})
		of := bench.Samples{}
		for k, s := range series {
			series[k].Better = cmp.Or(s.Better, bench.Less)
			for n := range 5 {
				of.Add(s.Name, float64((i+1)*unit+n))
			}
		}
		values = append(values, of)
	}
	if err := r.Fill(series, values); err != nil {
		panic(err)
	}
	return r
}

// TestBudget sums up the estimates of all steps.
func TestBudget(t *testing.T) {
	for fast, most := range map[bool]float64{false: 90, true: 15} {
		minutes := 0.0
		for _, p := range parts {
			for _, s := range p.in(fast) {
				minutes += s.minutes
				if s.minutes == 0 {
					t.Errorf("%s, %s: no estimate", p.Name, s.name)
				}
			}
		}
		if minutes > most {
			t.Errorf("fast: %t: %v minutes, want at most %v", fast, minutes, most)
		}
	}
}

// TestPage writes a page from complete records: no cell is empty without a reason, and each part has its command.
func TestPage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "index.html")
	if err := writePage(path, sampleRecords()); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	// Whatever is missing says why: kube-proxy's nftables mode with 100,000 Services.
	if n, why := strings.Count(text, `class="missing"`), strings.Count(text, `class="missing">not started`); n != 9 || why != n {
		t.Errorf("%d cells without a value, %d of them say why, want 9", n, why)
	}
	for _, bad := range []string{notMeasured, "was not run", "NaN", "<td></td>", "Disturbed"} {
		if strings.Contains(text, bad) {
			t.Errorf("the page has %s", bad)
		}
	}
	if n := strings.Count(text, "<svg"); n != 16 {
		t.Errorf("%d charts, want 16", n)
	}
	for _, p := range parts {
		if !strings.Contains(text, `id="`+p.Name+`"`) {
			t.Errorf("no part %s", p.Name)
		}
	}
	// The first screen, before the first part, has the five figures and two charts.
	first, _, _ := strings.Cut(text, "<h2")
	if n := strings.Count(first, "<svg"); n != 2 || strings.Count(first, "<b>3x</b>") != 4 || strings.Count(first, "<b>2x</b>") != 1 {
		t.Errorf("the first screen has %d charts, in %s", n, regexp.MustCompile("<b>.*</b>").FindAllString(first, -1))
	}
	for _, want := range []string{`id="short"`, "3.00 ms", "1.00 ms to 1.00 ms, n = 5", "1/3 of it (p = 0.0079)", "bin/bench rules", ">Maglev tables: 30 ports, 101 endpoints</td>", ">clean-up with rules of kube-proxy</td>"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page does not have %q", want)
		}
	}
}

// TestCopied reads the tables that the page copies: all rows are in the charts, and the claim has the highest value of
// the attacks. A table without one of a chart's columns, or with something else in it, is an error.
func TestCopied(t *testing.T) {
	rows := map[string][2]int{"tenants": {53, 3}, "faults": {9, 3}}
	for _, p := range parts {
		if p.From.Page == "" {
			continue
		}
		from, c := p.From, p.Charts[0]
		if err := from.read(); err != nil {
			t.Fatal(err)
		}
		r, err := from.result(c)
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Series) != rows[p.Name][0] || len(r.Subjects) != rows[p.Name][1] {
			t.Errorf("%s: %d series of %d subjects, want %d", p.Name, len(r.Series), len(r.Subjects), rows[p.Name])
		}
		highest := 0.0
		for _, s := range r.Series {
			highest = max(highest, s.Outcomes[2].Highest)
			if p.Name == "tenants" && slices.ContainsFunc(s.Outcomes, func(o bench.Outcome) bool { return len(o.Values) != 1 }) {
				t.Errorf("%s: %+v, want a value for each", s.Name, s.Outcomes)
			}
		}
		if want := fmt.Sprintf("at most %v ms", highest); p.Name == "tenants" && !strings.Contains(p.Claim, want) {
			t.Errorf("%q is not in the claim %q", want, p.Claim)
		}
		for name, change := range map[string]func(){
			"a column's name":  func() { from.Rows[0][slices.Index(from.Rows[0], c.Columns[0])] += "s" },
			"a row's end":      func() { from.Rows[3] = from.Rows[3][:1] },
			"a value too many": func() { from.Rows[3][slices.Index(from.Rows[0], c.Columns[0])] += ", 1" },
			"no number":        func() { from.Rows[3][slices.Index(from.Rows[0], c.Columns[0])] += "x" },
		} {
			from.Rows = nil
			if err := from.read(); err != nil {
				t.Fatal(err)
			}
			if change(); c.draw(&record{}, from) == nil {
				t.Errorf("%s: %s: no error", p.Name, name)
			}
		}
	}
}

// TestPageMissing writes a page where one subject was given up, one step has failed, other work
// disturbed a third, and one part was not run.
func TestPageMissing(t *testing.T) {
	all := sampleRecords()
	delete(all, "balancing")
	given := all["scale"].find("services-1000").Result
	given.Subjects[2].Failed = "not within -timeout\nmore"
	for _, s := range given.Series {
		s.Outcomes[2] = bench.Outcome{}
	}
	all["rules"].find("iptables").Result, all["rules"].find("iptables").Failed = nil, "exit status 1"
	all["latency"].find("host").Elsewhere = 0.5
	path := filepath.Join(t.TempDir(), "index.html")
	if err := writePage(path, all); err != nil {
		t.Fatal(err)
	}
	b, _ := os.ReadFile(path)
	for _, want := range []string{
		"given up: not within -timeout</td>", "not measured: exit status 1</td>", "Disturbed by other work on the machine: latency, host.",
		"This part was not run: <code>make report PART=balancing</code>", "Not all was measured: exit status 1",
	} {
		if !strings.Contains(string(b), want) {
			t.Errorf("the page does not have %q", want)
		}
	}
}

// TestResume runs parts with commands that write a result, or fail: a second run repeats what has
// failed and nothing else, another version repeats all, and a chosen part is repeated.
func TestResume(t *testing.T) {
	dir := t.TempDir()
	bench.QuietLimit = 0
	runs := filepath.Join(dir, "runs")
	script := func(name, then string) benchmark {
		file, text := filepath.Join(dir, name+".sh"), `echo `+name+` >>`+runs+`; `+then+` && echo '{"title": "`+name+`"}' >$2`
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return benchmark{Name: name, Fast: "sh " + file}
	}
	steps := []benchmark{script("good", "true"), script("bad", "test -e "+dir+"/repaired")}
	old := parts
	defer func() { parts = old }()
	parts = []*part{
		{Name: "one", Steps: steps},
		{Name: "two", Steps: []benchmark{script("third", "true")}},
	}
	ran := func(version string, names ...string) string {
		t.Helper()
		os.Remove(runs)
		_ = Run(t.Context(), Options{fast: true, parts: names, out: dir, version: version})
		b, _ := os.ReadFile(runs)
		return strings.Join(strings.Fields(string(b)), " ")
	}
	if got := ran("v1"); got != "good bad third" {
		t.Errorf("the first run: %q", got)
	}
	records, err := load(filepath.Join(dir, "data"))
	if err != nil {
		t.Fatal(err)
	}
	good, bad := records["one"].find("good"), records["one"].find("bad")
	if good.Result.Title != "good" || good.Failed != "" || good.Version != "v1" || !good.Fast || good.LoadBefore == "" || good.Memory == 0 || bad.Result != nil || bad.Failed == "" {
		a, _ := json.Marshal(records["one"])
		t.Errorf("%s", a)
	}
	if got := ran("v1"); got != "bad" {
		t.Errorf("the second run: %q", got)
	}
	if err := os.WriteFile(filepath.Join(dir, "repaired"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if a, b, c, d := ran("v1"), ran("v1"), ran("v1", "two"), ran("v2"); a != "bad" || b != "" || c != "third" || d != "good bad third" {
		t.Errorf("later runs: %q, %q, %q, %q", a, b, c, d)
	}
	if err := Run(t.Context(), Options{fast: true, parts: []string{"three"}, out: dir, version: "v1"}); err == nil || !strings.Contains(err.Error(), `"three"`) {
		t.Errorf("an unknown part: %v", err)
	}
}
