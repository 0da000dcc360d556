// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"context"
	"fmt"
)

// values are what one turn has measured, by the name of the series.
type values map[string]float64

// diverted is the value of a turn that is how many packets of its own it kept from
// both paths.
const diverted = "diverted"

// measured are the values of all turns, first by setting, then by round.
type measured struct {
	settings []Setting
	values   [][]values
	slow     [][]float64 // share of the packets that took the slow path
}

// turns makes rounds of turns, one of each setting. One turn of the first setting
// goes before, of which nothing is kept: the first one finds everything cold.
func (w *world) turns(ctx context.Context, rounds int, settings []Setting, turn func(context.Context, Setting) (values, error)) (*measured, error) {
	m := &measured{settings: settings, values: make([][]values, len(settings)), slow: make([][]float64, len(settings))}
	if _, _, err := w.turn(ctx, settings[0], turn); err != nil {
		return nil, err
	}
	for round := range rounds {
		for _, i := range order(len(settings), round) {
			v, slow, err := w.turn(ctx, settings[i], turn)
			if err != nil {
				return nil, err
			}
			m.values[i] = append(m.values[i], v)
			m.slow[i] = append(m.slow[i], slow)
		}
	}
	return m, nil
}

func (w *world) turn(ctx context.Context, s Setting, turn func(context.Context, Setting) (values, error)) (v values, slow float64, err error) {
	if err = w.set(s); err != nil {
		return nil, 0, err
	}
	before, err := passageOf(w.nodes[0].Node, false)
	if err != nil {
		return nil, 0, err
	}
	if v, err = turn(ctx, s); err != nil {
		return nil, 0, fmt.Errorf("%s: %w", s.Name, err)
	}
	after, err := passageOf(w.nodes[0].Node, true)
	after.arrived -= uint64(v[diverted])
	return v, before.share(after), err
}

// offloaded fails when connections stayed on the slow path that were to leave it.
// Nothing that was measured then means what it seems to.
func (m *measured) offloaded() error {
	const most = 0.5
	for i, s := range m.settings {
		for _, slow := range m.slow[i] {
			if s.Threshold > 0 && slow > most {
				return fmt.Errorf("%s: %.0f %% of the packets took the slow path: the connection was not offloaded", s.Name, 100*slow)
			}
		}
	}
	return nil
}

// of is one series of a setting, by round.
func (m *measured) of(setting int, name string) (all []float64) {
	for _, v := range m.values[setting] {
		all = append(all, v[name])
	}
	return all
}
