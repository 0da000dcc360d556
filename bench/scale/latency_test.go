// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"fmt"
	"net/http"
	"os"
	"testing"

	"github.com/slipstream-proxy/slipstream/bench/cluster"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
)

// serveOK is in the place of nginx.
func serveOK() int {
	err := http.ListenAndServe(fmt.Sprintf(":%d", cluster.TargetPort), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("ok\n"))
	}))
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// loadOnce is in the place of the load generator: it makes one request and reports four, one of
// which failed, with times that depend on the style.
func loadOnce(url, style string) int {
	answer, err := http.Get(url)
	if err != nil || answer.StatusCode != http.StatusOK {
		fmt.Fprintln(os.Stderr, answer, err)
		return 1
	}
	unit := map[string]float64{"keepalive": 0.001, "close": 0.002}[style]
	fmt.Printf(`{"DurationHistogram": {"Count": 4, "Avg": %v, "Percentiles": [{"Percentile": 50, "Value": %v}, {"Percentile": 99, "Value": %v}, {"Percentile": 99.9, "Value": %v}]}, "RetCodes": {"200": 3, "-1": 1}}`,
		unit, 2*unit, 3*unit, 4*unit)
	return 0
}

// TestLatency measures all subjects, with this program as server and load generator, and checks
// that the values reach the series that they belong to.
func TestLatency(t *testing.T) {
	kerneltest.Require(t, kerneltest.Root, kerneltest.NFTables, kerneltest.NFTBinary, kerneltest.IPTablesLegacy, kerneltest.IPSet)
	tidy(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r, err := run(t, Latency, "--services", "1,20", "--endpoints", "3", "--rounds", "2", "--seconds", "1", "--nginx", self, "--load", self)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Subjects) != 4 {
		t.Fatalf("subjects %+v", r.Subjects)
	}
	for _, n := range []int{1, 20} {
		for style, unit := range map[string]float64{"keepalive": 1e6, "close": 2e6} {
			for what, want := range map[string]float64{"mean": unit, "p50": 2 * unit, "p99": 3 * unit, "p999": 4 * unit, "errors": 25} {
				s := r.Find(latencyName(style, what, n))
				for i := range r.Subjects {
					if o := s.Outcomes[i]; len(o.Values) != 2 || o.Lowest < want*0.999 || o.Highest > want*1.001 {
						t.Errorf("%s, %s: %+v, want 2 values of %v", r.Subjects[i].Name, s.Name, o, want)
					}
				}
			}
			s := r.Find(latencyName(style, "cpu", n))
			for i := range r.Subjects {
				if o := s.Outcomes[i]; len(o.Values) != 2 || o.Lowest <= 0 {
					t.Errorf("%s, %s: %+v", r.Subjects[i].Name, s.Name, o)
				}
			}
		}
	}
}
