// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/bench/bench"
	"github.com/slipstream-proxy/slipstream/test/cluster/proxies"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
)

// built is a directory of slipstream of this checkout.
var built string

// build builds it once.
var build = sync.OnceValue(func() (err error) {
	ctx := context.Background()
	if built, err = os.MkdirTemp("", "slipstream-scale-test-"); err == nil {
		_, err = proxies.BuildSlipstream(ctx, built)
	}
	return err
})

// run measures with the given flags.
func run(t *testing.T, kind string, flags ...string) (*bench.Result, error) {
	t.Helper()
	o, err := parse(kind, append([]string{"--timeout", "1m"}, flags...)...)
	if err != nil {
		return nil, err
	}
	o.log = t.Logf
	if !slices.Contains(flags, "--slipstream") {
		o.slipstream = filepath.Join(built, "slipstream")
	}
	return bench.Run(t.Context(), kind, o)
}

// small are the flags of a short measurement.
func small(args ...string) []string {
	return append([]string{
		"--services", "50", "--endpoints", "3", "--changes", "30", "--burst", "20", "--bursts", "1", "--budget", "4s", "--quiet", "0s",
	}, args...)
}

// tidy checks that nothing is left behind, and restores what the commands change.
func tidy(t *testing.T) {
	t.Helper()
	if err := build(); err != nil { // not in the directory that is looked at
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", t.TempDir())
	t.Cleanup(func() {
		if left, _ := filepath.Glob(filepath.Join(os.TempDir(), "*")); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	})
	t.Setenv("PATH", os.Getenv("PATH"))
}

// TestAll measures all subjects of a small cluster and checks that all numbers exist.
func TestAll(t *testing.T) {
	kerneltest.Require(t, kerneltest.Root, kerneltest.NFTables, kerneltest.NFTBinary, kerneltest.IPTablesLegacy, kerneltest.IPSet)
	tidy(t)
	r, err := run(t, Scale, small()...)
	if err != nil {
		t.Fatal(err)
	}
	if r.Machine.Kernel == "" || r.Machine.Load == "" || r.LoadAfter == "" {
		t.Errorf("machine: %+v, load after %q", r.Machine, r.LoadAfter)
	}
	if len(r.Subjects) != len(proxies.Kinds) {
		t.Fatalf("%d subjects, want %d", len(r.Subjects), len(proxies.Kinds))
	}
	for i, s := range r.Subjects {
		checkSubject(t, r, i)
		if s.Failed != "" || s.Version == "" {
			t.Errorf("%+v", s)
		}
	}
	var text bytes.Buffer
	if err := r.WriteTable(&text); err != nil {
		t.Fatal(err)
	}
	t.Logf("\n%s", &text)
	for _, s := range r.Subjects {
		if strings.Count(text.String(), s.Name) < 2 {
			t.Errorf("the table does not have %s", s.Name)
		}
	}
}

func checkSubject(t *testing.T, r *bench.Result, k int) {
	t.Helper()
	name := r.Subjects[k].Name
	for series, count := range map[string]int{
		started.Name: 1, startCPU.Name: 1, resting.Name: 1, changed.Name: 3, changeCPU.Name: 1, burst.Name: 1, peakStart.Name: 1, peak.Name: 1,
		syncFull.Name: 1, syncPartial.Name: 1,
	} {
		s := r.Find(series)
		if s == nil || len(s.Outcomes[k].Values) < count {
			t.Errorf("%s: %s: %+v, want %d values", name, series, s, count)
			continue
		}
		// Few changes may take no more processor time than rest does.
		o, mayBeNone := s.Outcomes[k], series == changeCPU.Name
		if o.Lowest < 0 || o.Median == 0 && !mayBeNone || o.Highest < o.Median {
			t.Errorf("%s: %s: %+v", name, series, o)
		}
		if k > 0 && o.Ratio <= 0 && !mayBeNone {
			t.Errorf("%s: %s: no ratio", name, series)
		}
	}
	if r.Find(peak.Name).Outcomes[k].Median < r.Find(peakStart.Name).Outcomes[k].Median {
		t.Errorf("%s: the peak in the end is less than that of the start", name)
	}
}

// TestGivenUp measures subjects that end, or program nothing.
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
		tidy(t)
		begin := time.Now()
		r, err := run(t, Scale, small("--slipstream", program, "--subjects", "slipstream", "--timeout", timeout)...)
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := r.WriteTable(&out); err != nil {
			t.Fatal(err)
		}
		err = r.Failures()
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "slipstream: ") {
			t.Errorf("%s: error %v, want %q", program, err, want)
		}
		if !strings.Contains(out.String(), want) {
			t.Errorf("%s: the result does not say %q:\n%s", program, want, &out)
		}
		t.Logf("%s: given up after %v", program, time.Since(begin))
	}
}
