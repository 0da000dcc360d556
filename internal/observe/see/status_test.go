// SPDX-License-Identifier: Apache-2.0

package see

import (
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/proxy"
	"github.com/slipstream-proxy/slipstream/internal/source"
)

// TestFailing checks when an API server that does not answer is a problem.
func TestFailing(t *testing.T) {
	now := time.Now()
	for want, c := range map[string]source.Contact{
		"": {Heard: now.Add(-time.Hour)},
		"Requests to the API server have been failing for 1m0s: no route": {Failing: now.Add(-time.Minute), Cause: "no route"},
	} {
		if got := failing(c, now); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if got := failing(source.Contact{Failing: now.Add(-time.Second)}, now); got != "" {
		t.Errorf("after a second: %q", got)
	}
}

// TestSummarize checks that old changes, full contents and unknown lags do not count.
func TestSummarize(t *testing.T) {
	now := time.Now()
	all := []proxy.Programming{{At: now.Add(-time.Hour), Kind: "change", Took: time.Hour, Lag: time.Hour}, {At: now.Add(-time.Second), Kind: "full", Took: time.Hour, Lag: time.Hour}}
	for i := range 100 {
		p := proxy.Programming{At: now.Add(-time.Second), Kind: "change", Took: time.Duration(i + 1)}
		if i%2 == 0 {
			p.Lag = time.Duration(i+1) * 10
		}
		all = append(all, p)
	}
	if got, want := summarize(all, now, now.Add(-2*time.Minute)), (Changes{2, 100, 50, 99, 50, 490, 970}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// TestRemedies checks that each warning of the documentation says what to do.
func TestRemedies(t *testing.T) {
	docs, err := os.ReadFile("../../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	all := regexp.MustCompile("(?m)^\\| `(\\w+)` \\| Warning \\|").FindAllStringSubmatch(string(docs), -1)
	if len(all) < 15 {
		t.Fatalf("%d warnings in docs/metrics.md", len(all))
	}
	for _, m := range all {
		var w Warnings
		if w.Add(m[1], ""); w.Last()[0].Remedy == "" {
			t.Errorf("%s: no remedy", m[1])
		}
	}
}
