// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"math"
	"slices"
	"testing"
)

// someRounds are five rounds of two settings of which the second is twice as
// fast, while the machine gets faster and faster.
func someRounds() *measured {
	m := &measured{settings: []Setting{off, {"on", 20}}}
	for i, factor := range []float64{1, 2} {
		m.values = append(m.values, nil)
		for round := range 5 {
			m.values[i] = append(m.values[i], values{datagrams.name: factor * float64(10+round)})
		}
		m.slow = append(m.slow, []float64{1 - float64(i), 1 - float64(i), 0.5, 1 - float64(i), 1 - float64(i)})
	}
	return m
}

func TestSeries(t *testing.T) {
	s, err := someRounds().series(datagrams)
	if err != nil {
		t.Fatal(err)
	}
	if s.Name != "udp_packets" || s.Unit != PerSecond || s.Better != More || len(s.Outcomes) != 2 {
		t.Errorf("%+v", s)
	}
	base, on := s.Outcomes[0], s.Outcomes[1]
	if base.Median != 12 || base.Ratio != 1 || base.P != 1 || base.SlowPath != 1 {
		t.Errorf("off: %+v", base)
	}
	// Of the C(10, 5) = 252 ways to rank, two are as extreme.
	if on.Median != 24 || on.Ratio != 2 || math.Abs(on.P-2./252) > 1e-9 || on.SlowPath != 0 {
		t.Errorf("on: %+v", on)
	}
	if want := []float64{2, 2, 2, 2, 2}; !slices.Equal(on.Ratios, want) {
		t.Errorf("ratios %v, want %v", on.Ratios, want)
	}
}

// Differences can be 0 and less; nothing is a multiple of those.
func TestSeriesOfDifferences(t *testing.T) {
	m := someRounds()
	for round, v := range []float64{0, -1, 10, 20, 40} {
		m.values[0][round][datagrams.name] = v
	}
	s, err := m.series(datagrams)
	if err != nil {
		t.Fatal(err)
	}
	if on := s.Outcomes[1]; !slices.Equal(on.Ratios, []float64{2.4, 1.3, 0.7}) || on.Ratio != 1.3 {
		t.Errorf("%+v", on)
	}
}

func TestOffloaded(t *testing.T) {
	m := someRounds()
	if err := m.offloaded(); err != nil {
		t.Errorf("half of the packets on the slow path once: %v", err)
	}
	m.slow[1][2] = 0.51
	if m.offloaded() == nil {
		t.Error("no error when more than half took the slow path")
	}
}
