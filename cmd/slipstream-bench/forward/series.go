// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/stats"
)

// Unit is the unit of a series' values.
type Unit string

// The units.
const (
	BitsPerSecond Unit = "bit/s"
	PerSecond     Unit = "1/s"
	Nanoseconds   Unit = "ns"
)

// Better says which values of a series are better ones.
type Better string

// Which values are better.
const (
	More Better = "more"
	Less Better = "less"
)

// quantity is something that is measured.
type quantity struct {
	name, text string
	unit       Unit
	better     Better
}

// Series is one quantity, measured with all settings.
type Series struct {
	Name   string `json:"name"`
	Text   string `json:"text"` // the same for readers
	Unit   Unit   `json:"unit"` // of values and medians
	Better Better `json:"better"`

	Outcomes []Outcome `json:"outcomes"` // off first
}

// Outcome is what was measured of a series with one setting.
type Outcome struct {
	Setting
	Values []float64 `json:"values"` // by round
	Median float64   `json:"median"`

	// Ratio is the median of the values as multiples of those of off in the same
	// round, and P is how probable such a difference is by chance (two-sided
	// Mann-Whitney test). Both are 1 for off itself. Rounds in which off's value is
	// not above 0, which differences can be, have no ratio.
	Ratio  float64   `json:"ratio"`
	Ratios []float64 `json:"ratios"` // by round
	P      float64   `json:"p"`

	// SlowPath is the share of the packets that the first node's stack has
	// forwarded, from 0 to 1, median.
	SlowPath float64 `json:"slow_path"`
}

// series compares the settings by one quantity.
func (m *measured) series(q quantity) (*Series, error) {
	s := &Series{Name: q.name, Text: q.text, Unit: q.unit, Better: q.better}
	base := m.of(0, q.name)
	for i, setting := range m.settings {
		o := Outcome{Setting: setting, Values: m.of(i, q.name), P: 1, SlowPath: stats.Median(m.slow[i])}
		o.Median = stats.Median(o.Values)
		for round, v := range o.Values {
			if base[round] > 0 {
				o.Ratios = append(o.Ratios, v/base[round])
			}
		}
		o.Ratio = stats.Median(o.Ratios)
		if i > 0 {
			var err error
			if o.P, err = stats.MannWhitney(o.Values, base, stats.Differs); err != nil {
				return nil, err
			}
		}
		s.Outcomes = append(s.Outcomes, o)
	}
	return s, nil
}
