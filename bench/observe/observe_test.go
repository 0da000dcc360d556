// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"strings"
	"testing"

	"github.com/slipstream-proxy/slipstream/bench/bench"
	"github.com/slipstream-proxy/slipstream/test/cluster/proxies"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
)

// Every observer gets answers, and the proxy is measured for each. How much it uses is not looked at.
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
		Plan: bench.Plan{Slipstream: slipstream, Rounds: 1, Seconds: 1}, Observers: Observers, Services: 20, Endpoints: 2, Busy: 4, Rate: 40,
	}
	r, err := bench.Run(t.Context(), "observe", &o)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{cpu.Name, memory.Name, peak.Name, rate.Name, tracked.Name} {
		found := r.Find(s)
		if found == nil || len(found.Outcomes) != len(Observers) {
			t.Fatalf("%s: %+v", s, found)
		}
		for i, outcome := range found.Outcomes {
			if len(outcome.Values) != 1 || outcome.Median == 0 && s != cpu.Name {
				t.Errorf("%s of %s: %+v", s, Observers[i], outcome)
			}
		}
	}
}

func TestOptions(t *testing.T) {
	o := Options{Plan: bench.Plan{Rounds: 1, Seconds: 1}, Observers: []string{"wrong"}, Services: 1, Endpoints: 1, Busy: 1, Rate: 1}
	if _, err := bench.Run(t.Context(), "observe", &o); err == nil || !strings.HasPrefix(err.Error(), `--observers: "wrong"`) {
		t.Errorf("error %v", err)
	}
}
