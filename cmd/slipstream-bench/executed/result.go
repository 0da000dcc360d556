// SPDX-License-Identifier: Apache-2.0

// Package executed is the result of counting the rules that the kernel executes for a new
// connection, by numbers of Services. "scale rules" in test/cluster counts them, cmd/slipstream-bench/chart
// draws them.
package executed

import (
	"encoding/json"
	"io"

	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/machine"
	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/stats"
)

// Benchmark is what the JSON of a result calls itself, beside others.
const Benchmark = "rules"

// Result is what was counted.
type Result struct {
	Benchmark string          `json:"benchmark"`
	Machine   machine.Machine `json:"machine"`
	LoadAfter string          `json:"load_average_after"`
	Endpoints int             `json:"endpoints_per_service"`
	Sample    int             `json:"sample"` // connections for each number of Services, at most
	Seed      uint64          `json:"seed"`   // of the choice of Services
	Subjects  []*Subject      `json:"subjects"`
}

// Subject is a proxy.
type Subject struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	// Failed says why not all was counted.
	Failed string  `json:"failed,omitempty"`
	Counts []Count `json:"counts"`
}

// Count is what was counted with one number of Services.
type Count struct {
	Services int `json:"services"`
	// Rules were executed for the first packet of a connection to each Service of the
	// sample.
	Rules  []int   `json:"rules"`
	Median float64 `json:"median"`
	Least  int     `json:"least"`
	Most   int     `json:"most"`
	// First and Last were executed for the Services that come first and last in the
	// list of a proxy that has one; 0 for one that has none. They are not in Rules.
	First int `json:"first_in_list,omitempty"`
	Last  int `json:"last_in_list,omitempty"`
}

// SumUp fills in what follows from Rules.
func (c *Count) SumUp() {
	values := make([]float64, len(c.Rules))
	for i, n := range c.Rules {
		values[i] = float64(n)
	}
	c.Median = stats.Median(values)
	c.Least, c.Most = stats.Percentile(c.Rules, 0), stats.Percentile(c.Rules, 100)
}

// With is what was counted with so many Services, if it was.
func (s *Subject) With(services int) (c Count, ok bool) {
	for _, c := range s.Counts {
		if c.Services == services {
			return c, true
		}
	}
	return c, false
}

// WriteJSON writes the result as indented JSON.
func (r *Result) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}
