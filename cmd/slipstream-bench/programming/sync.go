// SPDX-License-Identifier: Apache-2.0

package programming

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/machine"
	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/stats"
)

const (
	// rounds is how many turns Slipstream and the baseline take with the
	// repetitions of changes, so that both meet the same disturbances.
	rounds = 5

	// seriesLimit bounds each kind of change in each round.
	seriesLimit = 4 * time.Second
)

// Sync measures what it costs to program the kernel. The command starts the
// child processes in which that happens.
func Sync(ctx context.Context, command Command, o SyncOptions) (*SyncResult, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if err := o.resolve(); err != nil {
		return nil, fmt.Errorf("--mode: %w", err)
	}
	if o.ProfileDir != "" {
		if err := os.MkdirAll(o.ProfileDir, 0o755); err != nil {
			return nil, fmt.Errorf("--profile: %w", err)
		}
	}
	s := &syncRuns{command: command, options: o, machine: machine.This()}
	if s.skipped = o.noBaseline(); s.skipped != "" {
		s.off = true
	}
	for range o.Runs {
		err := s.run(ctx)
		if ctx.Err() != nil {
			return nil, errors.New("interrupted")
		}
		if err != nil {
			return nil, err
		}
	}
	return s.result()
}

// noBaseline says why the baseline is not to be measured; empty when it is.
func (o *SyncOptions) noBaseline() string {
	switch n := o.Services * o.Endpoints * len(o.families()); {
	case o.Baseline == BaselineOff:
		return "off"
	case o.Baseline == BaselineAuto && n > autoBaseline:
		return fmt.Sprintf("it would take minutes with %d endpoints; --baseline=on to wait", n)
	}
	return ""
}

// syncRuns collects what the runs measure.
type syncRuns struct {
	command Command
	options SyncOptions
	machine machine.Machine
	off     bool   // no more of the baseline is to be measured
	skipped string // why not all of the baseline has been

	cold, restart []*Programming
	memory        []*Memory
	series        map[string]*samples

	chainsCold     []*Load
	chainsSplit    []*Load
	chainsSeries   map[string]*samples
	chainsPeak     int64
	verified       bool
	chainsVerified bool
}

// run is one run, in new processes.
func (s *syncRuns) run(ctx context.Context) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	p, _, err := startProcess(ctx, s.command, systemSlipstream, &s.options)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	machine.Quiet(ctx)
	r, err := p.step(request{Step: stepCold})
	if err != nil {
		return err
	}
	s.cold = append(s.cold, r.Program)
	machine.Quiet(ctx)
	if r, err = p.step(request{Step: stepRestart}); err != nil {
		return err
	}
	s.restart = append(s.restart, r.Program)
	base, err := s.startBaseline(ctx)
	if err != nil {
		return err
	}
	if base != nil {
		defer func() { err = errors.Join(err, base.close()) }()
	}
	spent := time.Duration(0)
	for round := range rounds {
		machine.Quiet(ctx)
		if err := s.changes(p, round); err != nil {
			return err
		}
		if base != nil && !s.off && (round == 0 || s.options.BaselineTimeout == 0 || spent < s.options.BaselineTimeout/2) {
			took, err := s.baselineChange(base)
			if err != nil {
				return err
			}
			spent += took
		}
	}
	return s.finish(p, base)
}

// startBaseline starts the baseline's process and measures its cold start. It
// returns nil when there is nothing to measure changes of.
func (s *syncRuns) startBaseline(ctx context.Context) (*process, error) {
	if s.off {
		return nil, nil
	}
	base, why, err := startProcess(ctx, s.command, systemChains, &s.options)
	if base == nil || err != nil {
		s.off, s.skipped = true, why
		return nil, err
	}
	tooLong, loaded := s.skipped != "", false
	_, iptables := iptablesVariant(s.options.Mode)
	for _, load := range []struct {
		step string
		all  *[]*Load
	}{{stepCold, &s.chainsCold}, {stepSplit, &s.chainsSplit}} {
		if load.step == stepCold && tooLong || load.step == stepSplit && (iptables || s.options.Services <= splitServices) {
			continue // in a run before; or there is only one part
		}
		machine.Quiet(ctx)
		r, err := base.step(request{Step: load.step})
		switch {
		case err != nil:
			return nil, errors.Join(err, base.close())
		case r.Unavailable != "":
			s.skipped, loaded = "cold start: "+r.Unavailable, false
		default:
			*load.all, loaded = append(*load.all, r.Load), true
		}
	}
	if !loaded {
		s.off = true
		return nil, base.close()
	}
	return base, nil
}

// changes has Slipstream make one round of changes of each kind.
func (s *syncRuns) changes(p *process, round int) error {
	n := s.options.Repetitions*(round+1)/rounds - s.options.Repetitions*round/rounds
	for _, step := range []string{stepReplace, stepEndpoints, stepServices, stepBurst} {
		if n == 0 && step != stepBurst {
			continue
		}
		r, err := p.step(request{Step: step, Repetitions: n, Limit: seriesLimit})
		if err != nil {
			return err
		}
		add(&s.series, r.Series)
	}
	return nil
}

func (s *syncRuns) baselineChange(base *process) (time.Duration, error) {
	r, err := base.step(request{Step: stepReplace, Repetitions: 1})
	if err != nil {
		return 0, err
	}
	if r.Unavailable != "" {
		s.off, s.skipped = true, "change: "+r.Unavailable
		return r.Elapsed, nil
	}
	add(&s.chainsSeries, r.Series)
	return r.Elapsed, nil
}

// add adds series to those there are.
func add(all *map[string]*samples, more map[string]*samples) {
	if *all == nil {
		*all = map[string]*samples{}
	}
	for name, m := range more {
		if (*all)[name] == nil {
			(*all)[name] = &samples{}
		}
		(*all)[name].append(m)
	}
}

// finish takes the last steps of a run.
func (s *syncRuns) finish(p, base *process) error {
	r, err := p.step(request{Step: stepMemory})
	if err != nil {
		return err
	}
	s.memory = append(s.memory, r.Memory)
	if s.options.Verify {
		if _, err := p.step(request{Step: stepVerify}); err != nil {
			return err
		}
		s.verified = true
	}
	if base == nil {
		return nil
	}
	if r, err = base.step(request{Step: stepMemory}); err != nil {
		return err
	}
	s.chainsPeak = max(s.chainsPeak, r.Memory.PeakBytes)
	if s.options.Verify && !s.off {
		if _, err := base.step(request{Step: stepVerify}); err != nil {
			return err
		}
		s.chainsVerified = true
	}
	return nil
}

// result summarizes all runs.
func (s *syncRuns) result() (*SyncResult, error) {
	if err := checkSeries(s.series); err != nil {
		return nil, err
	}
	total := func(p *Programming) float64 { return p.TotalMS }
	r := &SyncResult{
		Machine: s.machine,
		Options: s.options,
		Slipstream: Costs{
			Cold:     *stats.MedianBy(s.cold, total),
			Restart:  *stats.MedianBy(s.restart, total),
			Memory:   *stats.MedianBy(s.memory, func(m *Memory) int64 { return m.PeakColdBytes }),
			Changes:  map[string]*Latency{},
			Verified: s.verified,
		},
		Chains: Chains{
			Skipped:          s.skipped,
			EndpointReplaced: s.chainsSeries[endpointReplaced].latency(),
			PeakBytes:        s.chainsPeak,
			Verified:         s.chainsVerified,
		},
	}
	for _, c := range s.cold {
		r.Slipstream.ColdTotalsMS = append(r.Slipstream.ColdTotalsMS, c.TotalMS)
	}
	for _, name := range seriesNames {
		r.Slipstream.Changes[name.name] = s.series[name.name].latency()
	}
	b := s.series[burst].latency()
	r.Slipstream.Burst = Burst{
		Changes:     burstChanges,
		Count:       b.Count,
		TotalMS:     b.MedianUS / 1000,
		PerChangeUS: b.MedianUS / burstChanges,
		Elements:    b.Elements,
		Bytes:       b.Bytes,
	}
	took := func(l *Load) float64 { return l.TotalMS }
	if len(s.chainsCold) > 0 {
		r.Chains.Cold = stats.MedianBy(s.chainsCold, took)
	}
	if len(s.chainsSplit) > 0 {
		r.Chains.ColdSplit = stats.MedianBy(s.chainsSplit, took)
	}
	return r, nil
}
