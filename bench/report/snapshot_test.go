// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slipstream-proxy/slipstream/bench/bench"
)

// TestSnapshot refuses a short run without writing anything, and names what is missing or disturbed.
func TestSnapshot(t *testing.T) {
	to := filepath.Join(t.TempDir(), "docs", "report")
	log := &strings.Builder{}
	all := sampleRecords()
	all["rules"].find("iptables").Fast = true
	if err := snapshot(all, to, log); err == nil || err.Error() != "rules, iptables: measured with FAST=1" {
		t.Error(err)
	}
	if _, err := os.Stat(to); err == nil {
		t.Error("the snapshot was written")
	}
	all = sampleRecords()
	all["latency"].find("ipvs").Elsewhere = 0.5
	delete(all, "fleet")
	log.Reset()
	for range 2 { // what it has written can be replaced again
		if err := snapshot(all, to, log); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{"latency, ipvs was disturbed: other work used 0.50 processors\n", "fleet was not run\n"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("not said: %q, in %s", want, log)
		}
	}
	kept, err := load(filepath.Join(to, "data"))
	if err != nil || len(kept) != len(parts)-1 {
		t.Errorf("%d records, %v", len(kept), err)
	}
	if _, err := os.Stat(filepath.Join(to, "index.html")); err != nil {
		t.Error(err)
	}
}

// TestReadme compares the figures of README's first table, and of the sentence below it, with the snapshot.
func TestReadme(t *testing.T) {
	b, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	records, err := load("../../docs/report/data")
	if err != nil {
		t.Fatal(err)
	}
	medians := func(services int, series string) (ours, theirs string, ratio float64) {
		step := records["scale"].find(fmt.Sprintf("services-%d", services))
		s, o, missing := step.outcome(series, "slipstream")
		_, k, missingTheirs := step.outcome(series, "kube-proxy-nftables")
		if missing+missingTheirs != "" {
			t.Fatalf("%d Services, %s: %s %s", services, series, missing, missingTheirs)
		}
		return s.Unit.Format(o.Median), s.Unit.Format(k.Median), bench.Median(k.Values) / bench.Median(o.Values)
	}
	var want []string
	for _, row := range []struct{ series, what, better string }{
		{"start", "start until Services answer", "faster"}, {"change", "an endpoint replaced, median", "faster"},
		{"change_cpu", "CPU time for it", "less"}, {"peak_rss", "peak memory", "less"},
	} {
		ours, theirs, ratio := medians(10_000, row.series)
		want = append(want, fmt.Sprintf("| %s | %s | %s | %sx %s |", row.what, ours, theirs, digits(ratio), row.better))
	}
	ourStart, start, _ := medians(27_000, "start")
	ourChange, change, _ := medians(27_000, "change")
	want = append(want, fmt.Sprintf("kube-proxy needs %s to start and %s for a change,\nSlipstream %s and %s.\n", start, change, ourStart, ourChange))
	for _, w := range want {
		if !strings.Contains(string(b), w) {
			t.Errorf("README does not have %q", w)
		}
	}
}
