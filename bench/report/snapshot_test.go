// SPDX-License-Identifier: Apache-2.0

package report

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestSnapshot replaces README's table, and refuses short runs and missing figures without
// changing anything.
func TestSnapshot(t *testing.T) {
	dir := t.TempDir()
	readme, to := filepath.Join(dir, "README.md"), filepath.Join(dir, "docs", "report")
	const old = "above\n" + tableBegin + "old\n" + tableEnd + "below\n"
	if err := os.WriteFile(readme, []byte(old), 0o600); err != nil {
		t.Fatal(err)
	}
	log := &strings.Builder{}
	for want, spoil := range map[string]func(map[string]*record){
		"rules, iptables: measured with FAST=1": func(all map[string]*record) { all["rules"].find("iptables").Fast = true },
		"part scale was not run":                func(all map[string]*record) { delete(all, "scale") },
		"part scale, 10,000 Services, start: not measured: killed": func(all map[string]*record) {
			s := all["scale"].find("services-10000")
			s.Result, s.Failed = nil, "killed"
		},
		"part scale, 27,000 Services, start: not measured in this run": func(all map[string]*record) { all["scale"].Steps = all["scale"].Steps[:2] },
	} {
		all := sampleRecords()
		spoil(all)
		if err := snapshot(all, to, readme, log); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
		if b, _ := os.ReadFile(readme); string(b) != old {
			t.Errorf("%s: README is\n%s", want, b)
		}
		if _, err := os.Stat(to); err == nil {
			t.Errorf("%s: the snapshot was written", want)
		}
	}
	all := sampleRecords()
	all["latency"].find("ipvs").Elsewhere = 0.5
	delete(all, "fleet")
	log.Reset()
	for range 2 { // what it has written can be replaced again
		if err := snapshot(all, to, readme, log); err != nil {
			t.Fatal(err)
		}
	}
	b, _ := os.ReadFile(readme)
	for _, want := range []string{"above\n" + tableBegin, tableEnd + "below\n", "| start until Services answer | 1.00 ms | 3.00 ms | 3x faster | a node that joins serves sooner |\n", "kube-proxy needs 3.00 ms to start and 3.00 ms for a change,\nSlipstream 1.00 ms and 1.00 ms.\n"} {
		if !strings.Contains(string(b), want) {
			t.Errorf("README does not have %q:\n%s", want, b)
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

// TestReadme checks that README has the lines that a snapshot looks for.
func TestReadme(t *testing.T) {
	b, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Count(string(b), tableBegin) != 1 || strings.Count(string(b), tableEnd) != 1 {
		t.Error("README does not have the lines around the table once")
	}
}
