// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"context"
	"encoding/json"
	"errors"
	"io"

	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/machine"
	"github.com/slipstream-proxy/slipstream/internal/fastpath"
)

// Result is what [Throughput] or [CRR] has measured.
type Result struct {
	Benchmark  string             `json:"benchmark"` // "throughput" or "crr"
	Machine    machine.Machine    `json:"machine"`
	LoadAfter  string             `json:"load_average_after"`
	Throughput *ThroughputOptions `json:"throughput_options,omitempty"`
	CRR        *CRROptions        `json:"crr_options,omitempty"`

	// NoFastPath says why there is no fast path on this kernel. Only off has
	// been measured then.
	NoFastPath string `json:"no_fast_path,omitempty"`

	Series []*Series `json:"series"`
}

// run fills in a result.
func run(ctx context.Context, o Options, r Result, measure func(*world, *Result) error) (_ *Result, err error) {
	r.Machine = machine.This()
	w, err := newWorld(o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	if err := w.probe(); errors.Is(err, fastpath.ErrUnsupported) {
		r.NoFastPath = err.Error()
	} else if err != nil {
		return nil, err
	}
	machine.Quiet(ctx)
	if err := measure(w, &r); err != nil {
		return nil, interrupted(ctx, err)
	}
	r.LoadAfter = machine.This().Load
	return &r, nil
}

// interrupted makes one plain error of all that an interrupt leads to.
func interrupted(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return errors.New("interrupted")
	}
	return err
}

// Options are what both benchmarks have in common.
func (r *Result) Options() Options {
	if r.CRR != nil {
		return r.CRR.Options
	}
	return r.Throughput.Options
}

// settings are those that can be measured.
func (r *Result) settings() []Setting {
	if r.NoFastPath != "" {
		return Settings[:1]
	}
	return Settings
}

// add adds series of what was measured.
func (r *Result) add(m *measured, all ...quantity) error {
	for _, q := range all {
		s, err := m.series(q)
		if err != nil {
			return err
		}
		r.Series = append(r.Series, s)
	}
	return nil
}

// WriteJSON writes the result as indented JSON.
func (r *Result) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}
