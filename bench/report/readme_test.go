// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/slipstream-proxy/slipstream/bench/bench"
)

// TestReadme compares the figures of README's first table, and of the sentence below it, with the published run, which must not be a short one.
func TestReadme(t *testing.T) {
	b, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	records, err := load("../../docs/report/data")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range records {
		for _, step := range r.Steps {
			if step.Fast {
				t.Errorf("%s, %s: measured with FAST=1", r.Part, step.Name)
			}
		}
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
	_, release, _ := strings.Cut(records["scale"].Steps[0].Result.Subjects[2].Version, " ") // "Kubernetes v1.37.2"
	want := []string{"beside kube-proxy " + release + " in nftables mode"}
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

// TestTenantsClaim checks what the part about tenants claims, in the table that it shows.
func TestTenantsClaim(t *testing.T) {
	c := copied{Page: "security.md", Head: "| attack |"}
	if err := c.read(); err != nil {
		t.Fatal(err)
	}
	if len(c.Rows) < 40 {
		t.Errorf("%d rows", len(c.Rows))
	}
	for _, row := range c.Rows[1:] {
		if !strings.HasPrefix(row[2], "0 of ") {
			t.Errorf("%s: connections of another tenant failed: %s", row[0], row[2])
		}
	}
}
