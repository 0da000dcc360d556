// SPDX-License-Identifier: Apache-2.0

package balance

import (
	"strings"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/bench/bench"
	"github.com/slipstream-proxy/slipstream/test/cluster/proxies"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
)

// Everything is measured for each scheduler, and requests take as long as the servers need at
// least. How long they take is not looked at.
func TestMeasure(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTables)
	if kerneltest.UML() {
		t.Skip("slipstream would be built in User Mode Linux, which is slow")
	}
	slipstream, err := proxies.BuildSlipstream(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	o := Options{
		Plan: bench.Plan{Slipstream: slipstream, Rounds: 1, Seconds: 3}, Schedulers: Schedulers, Nodes: 2, Endpoints: 3, Rate: 60, Service: time.Millisecond, Slow: 10, Idle: 2, Failing: 6,
	}
	r, err := bench.Run(t.Context(), "balance", &o)
	if err != nil {
		t.Fatal(err)
	}
	want := len(Schedulers)
	if len(r.Notes) > 0 { // no IPVS
		want--
	}
	if len(r.Subjects) != want {
		t.Errorf("subjects %v, notes %q", r.Subjects, r.Notes)
	}
	for _, s := range []bench.Series{p50, p99, share, cpu, failures[0].series, failures[1].series, failures[2].series, failures[3].series} {
		found := r.Find(s.Name)
		if found == nil || len(found.Outcomes) != want {
			t.Fatalf("%s: %+v", s.Name, found)
		}
		for i, outcome := range found.Outcomes {
			least := 0.0
			if s.Unit == bench.Nanoseconds {
				least = float64(o.Service)
			}
			if len(outcome.Values) != 1 || outcome.Median < least || outcome.Median == 0 && i == 0 {
				t.Errorf("%s of %s: %+v", s.Name, r.Subjects[i].Name, outcome)
			}
		}
	}
	// Every third connection, when taken in turn.
	if got := r.Find(share.Name).Outcomes[1].Median; got < 20 || got > 50 {
		t.Errorf("in turn, the slow server of 3 got %.1f %%", got)
	}
	for _, f := range failures {
		if got := r.Find(f.series.Name).Outcomes[1].Median; got < 20 || got > 50 {
			t.Errorf("in turn, with one of 3 endpoints that fails, %s: %.1f %%", f.series.Name, got)
		}
	}
	for _, f := range []int{0, len(failures) - 1} { // those that it finds
		if got := r.Find(failures[f].series.Name).Outcomes; got[want-1].Median > got[1].Median/2 {
			t.Errorf("with detection, %s: %.1f %%, in turn %.1f %%", failures[f].series.Name, got[want-1].Median, got[1].Median)
		}
	}
}

func TestOptions(t *testing.T) {
	o := Options{Plan: bench.Plan{Rounds: 1, Seconds: 1}, Schedulers: []string{"lc", "wrong"}, Nodes: 1, Endpoints: 1, Rate: 1, Slow: 1}
	if _, err := bench.Run(t.Context(), "balance", &o); err == nil || !strings.HasPrefix(err.Error(), `--schedulers: "wrong"`) {
		t.Errorf("error %v", err)
	}
}
