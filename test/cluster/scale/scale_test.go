// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/machine"
	"github.com/slipstream-proxy/slipstream/test/kerneltest"
)

// testOptions are those of a command line, with what makes a test short.
func testOptions(t *testing.T, args ...string) *options {
	t.Helper()
	tidy(t)
	machine.QuietLimit = 0 // times are not looked at
	o, err := parse(append([]string{
		"-services", "50", "-endpoints", "3", "-changes", "30", "-burst", "20", "-bursts", "1", "-budget", "4s", "-timeout", "1m", "-output", "json",
	}, args...))
	if err != nil {
		t.Fatal(err)
	}
	return &o
}

// tidy wants nothing to be left behind, and undoes what the commands change.
func tidy(t *testing.T) {
	t.Helper()
	t.Setenv("TMPDIR", t.TempDir())
	t.Cleanup(func() {
		if left, _ := filepath.Glob(filepath.Join(os.TempDir(), "*")); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	})
	t.Setenv("PATH", os.Getenv("PATH"))
}

// TestAll measures all subjects of a small cluster and wants every number.
func TestAll(t *testing.T) {
	kerneltest.Require(t, kerneltest.Root, kerneltest.NFTables, kerneltest.NFTBinary, kerneltest.IPTablesLegacy, kerneltest.IPSet)
	save := filepath.Join(t.TempDir(), "saved.json")
	o := testOptions(t, "-save", save)
	var out bytes.Buffer
	if err := scale(t.Context(), o, &out, t.Logf); err != nil {
		t.Fatal(err)
	}
	saved, err := os.ReadFile(save)
	if err != nil || !bytes.Equal(saved, out.Bytes()) {
		t.Errorf("%v; what was saved is not what was printed:\n%s", err, saved)
	}
	var r result
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatal(err)
	}
	if r.Filled.Services != 50 || r.Filled.Slices != 50 || r.Filled.Endpoints != (50-changing)*3+changing || r.Filled.Seconds <= 0 {
		t.Errorf("filled: %+v", r.Filled)
	}
	if r.Machine.Kernel == "" || r.Machine.Load == "" || r.LoadAfter == "" {
		t.Errorf("machine: %+v, load after %q", r.Machine, r.LoadAfter)
	}
	if len(r.Subjects) != len(subjects) {
		t.Fatalf("%d subjects, want %d", len(r.Subjects), len(subjects))
	}
	for i, s := range r.Subjects {
		checkOutcome(t, s, i == 0)
	}
	var text bytes.Buffer
	if err := r.writeTable(&text); err != nil {
		t.Fatal(err)
	}
	t.Logf("\n%s", &text)
	for _, s := range r.Subjects {
		if strings.Count(text.String(), s.Name) < 2 {
			t.Errorf("the table does not have %s", s.Name)
		}
	}
}

func checkOutcome(t *testing.T, s *outcome, first bool) {
	t.Helper()
	if s.Failed != "" || len(s.Runs) != 1 || s.Version == "" {
		t.Errorf("%s: %+v", s.Name, s)
		return
	}
	c := s.Costs
	numbers := map[string]float64{
		"start": c.StartMS, "its processor time": c.StartCPUMS,
		"changes": float64(c.Changes), "median": c.ChangeMedianMS, "99th percentile": c.ChangeP99MS, "longest": c.ChangeMaxMS,
		"bursts": float64(c.Bursts), "burst": c.BurstMS, "longest burst": c.BurstMaxMS, "writing it": c.BurstWrittenMS,
		"peak when started": float64(c.PeakStartBytes), "peak": float64(c.PeakBytes),
	}
	if !first {
		if s.Times == nil {
			t.Errorf("%s: no ratios", s.Name)
			return
		}
		numbers["ratio of starts"] = s.Times.Start
		numbers["ratio of changes"] = s.Times.ChangeMedian
		numbers["ratio of bursts"] = s.Times.Burst
		numbers["ratio of peaks"] = s.Times.Peak
	}
	for what, n := range numbers {
		if n <= 0 {
			t.Errorf("%s: %s: %v", s.Name, what, n)
		}
	}
	// Processor time is counted in units of 10 ms, which few changes may not come to.
	if c.ChangeCPUMS < 0 || c.PeakBytes < c.PeakStartBytes || c.ChangeMaxMS < c.ChangeMedianMS {
		t.Errorf("%s: %+v", s.Name, c)
	}
}

// TestGivenUp has subjects that end, or program nothing.
func TestGivenUp(t *testing.T) {
	kerneltest.Require(t, kerneltest.Root, kerneltest.NFTables)
	idle := filepath.Join(t.TempDir(), "idle")
	if err := os.WriteFile(idle, []byte("#!/bin/sh\n[ \"$2\" = --version ] || exec sleep 60\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for program, want := range map[string]string{"/bin/false": "it ended", idle: errTooLong.Error()} {
		timeout := "1s"
		if want != errTooLong.Error() {
			timeout = "30s"
		}
		o := testOptions(t, "-slipstream", program, "-subjects", "slipstream", "-timeout", timeout)
		begin := time.Now()
		var out bytes.Buffer
		err := scale(t.Context(), o, &out, t.Logf)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "slipstream: ") {
			t.Errorf("%s: error %v, want %q", program, err, want)
		}
		if !strings.Contains(out.String(), want) {
			t.Errorf("%s: the result does not say %q:\n%s", program, want, &out)
		}
		t.Logf("%s: given up after %v", program, time.Since(begin))
	}
}
