// SPDX-License-Identifier: Apache-2.0

// Package programming measures what it costs Slipstream to program the kernel of this
// machine: a cold start, a restart, single changes, bursts and memory. Next to it the same
// Services are programmed as a baseline of rules in the shape of kube-proxy's, in its
// nftables or iptables mode.
//
// Slipstream runs in a child process, so that memory numbers are its own, and each
// system in a network namespace of its own, so that nothing is left behind. The measured
// code is the product's: package desired and a dataplane, called as package proxy calls
// them.
package programming

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/bench"
)

const (
	// rounds is how many turns Slipstream and the baseline have in a run, so that both
	// meet the same disturbances.
	rounds = 5

	// burstChanges is how many changes a burst has.
	burstChanges = 1000
)

// Names of series. Those of a change's processor time and elements have these suffixes.
const (
	coldStart        = "cold_start"
	coldSplit        = "cold_start_split"
	restart          = "restart"
	endpointReplaced = "endpoint_replaced"
	endpointAdded    = "endpoint_added"
	endpointRemoved  = "endpoint_removed"
	serviceAdded     = "service_added"
	serviceRemoved   = "service_removed"
	burst            = "burst"
	peakCold         = "peak_rss_cold_start"

	cpuSuffix      = "_cpu"
	elementsSuffix = "_elements"
)

// changes are the kinds of single changes, in the order of the table.
var changes = []struct{ name, text string }{
	{endpointReplaced, "one endpoint replaced"},
	{endpointAdded, "one endpoint added"},
	{endpointRemoved, "one endpoint removed"},
	{serviceAdded, "one Service added"},
	{serviceRemoved, "one Service removed"},
}

// series are what is measured, in the order of the table.
func series() (all []bench.Series) {
	add := func(name, text string, u bench.Unit, show ...bench.Statistic) {
		all = append(all, bench.Series{Name: name, Text: text, Unit: u, Better: bench.Less, Show: show})
	}
	steps := func(name string) {
		add(name+"_state", "  objects into the desired state", bench.Nanoseconds)
		add(name+"_full", "  full description", bench.Nanoseconds)
		add(name+"_kernel", "  encoding, and the kernel", bench.Nanoseconds)
	}
	add(coldStart, "cold start", bench.Nanoseconds, bench.P50, bench.Lowest, bench.Highest)
	add(coldSplit, fmt.Sprintf("  a transaction for every %s Services", bench.Thousands(splitServices)), bench.Nanoseconds)
	steps(coldStart)
	add(coldStart+elementsSuffix, "  elements written", bench.Count)
	add(coldStart+"_bytes", "  bytes sent", bench.Bytes)
	add(restart, "restart over existing rules", bench.Nanoseconds, bench.P50, bench.Lowest, bench.Highest)
	steps(restart)
	for _, c := range changes {
		add(c.name, c.text, bench.Nanoseconds, bench.P50, bench.P99, bench.Highest)
		add(c.name+cpuSuffix, "  processor time", bench.Nanoseconds, bench.Mean)
		add(c.name+elementsSuffix, "  elements written", bench.Count)
	}
	add(burst, fmt.Sprintf("burst of %s endpoints replaced", bench.Thousands(burstChanges)), bench.Nanoseconds, bench.P50, bench.Highest)
	add(burst+elementsSuffix, "  elements written", bench.Count)
	add(peakCold, "peak RSS of the cold start (baseline: of the command)", bench.Bytes)
	add("peak_rss", "peak RSS of everything", bench.Bytes)
	add("rss_cold_start", "RSS at rest after the cold start", bench.Bytes)
	add("rss_file_cold_start", "  of it the binary", bench.Bytes)
	add("heap_cold_start", "  reachable heap", bench.Bytes)
	add("rss", "RSS at rest in the end", bench.Bytes)
	return all
}

// Sync measures what it costs to program the kernel. command starts a process that calls
// [RunChild].
func Sync(ctx context.Context, command []string, o Options) (*bench.Result, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	if err := o.resolve(ctx); err != nil {
		return nil, fmt.Errorf("--mode: %w", err)
	}
	if o.ProfileDir != "" {
		if err := os.MkdirAll(o.ProfileDir, 0o755); err != nil {
			return nil, fmt.Errorf("--profile: %w", err)
		}
	}
	external := ""
	if o.External > 0 {
		external = fmt.Sprintf(", %d %% of them external", o.External)
	}
	s := &syncs{
		command: command, options: &o, skipped: o.skipBaseline(),
		slipstream: bench.Samples{}, baseline: bench.Samples{},
	}
	s.off = s.skipped != ""
	r := &bench.Result{
		Benchmark: "sync", Options: &o, Machine: bench.ThisMachine(),
		Title: fmt.Sprintf("%s Services x %s endpoints%s, %s, mode %s, up to %s repetitions of each change, seed %d, runs: %d",
			bench.Thousands(o.Services), bench.Thousands(o.Endpoints), external, o.Family, o.Mode, bench.Thousands(o.Repetitions), o.Seed, o.Runs),
	}
	for range o.Runs {
		if err := s.run(ctx); err != nil {
			return nil, bench.Interrupted(ctx, err)
		}
	}
	for _, c := range changes {
		if len(s.slipstream[c.name]) == 0 {
			return nil, fmt.Errorf("nothing was measured of %q", c.text)
		}
	}
	r.LoadAfter = bench.LoadAverage()
	r.Subjects = []bench.Subject{{Name: "slipstream"}, {Name: newShape(&o).name(), Failed: s.skipped}}
	if o.Verify {
		r.Notes = append(r.Notes, "verified: in the end the kernel had what was meant")
	}
	return r, r.Fill(series(), []bench.Samples{s.slipstream, s.baseline})
}

// syncs collects what the runs measure.
type syncs struct {
	command []string
	options *Options

	off      bool   // the baseline is not measured any more
	coldLong bool   // its cold start in one transaction takes too long
	skipped  string // why not all of the baseline was measured

	slipstream, baseline bench.Samples
}

// run is one run, in new processes and namespaces.
func (s *syncs) run(ctx context.Context) (err error) {
	c, err := startChild(ctx, s.command, s.options)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	for _, step := range []string{"Cold", "Restart"} {
		bench.Quiet(ctx)
		if err := c.call(step, 0, s.slipstream); err != nil {
			return err
		}
	}
	base, err := s.startBaseline(ctx)
	if err != nil {
		return err
	}
	if base != nil {
		defer func() { err = errors.Join(err, base.close()) }()
	}
	spent := time.Duration(0)
	err = bench.Turns(ctx, rounds, 2, func(round, subject int) error {
		if subject == 0 {
			bench.Quiet(ctx)
			n := s.options.Repetitions
			return c.call("Changes", n*(round+1)/rounds-n*round/rounds, s.slipstream)
		}
		limit := s.options.BaselineTimeout / 2
		if base == nil || s.off || round > 0 && limit > 0 && spent >= limit {
			return nil
		}
		took, err := base.replace(ctx, s.baseline)
		spent += took
		return s.skip("change", err)
	})
	if err != nil {
		return err
	}
	if err := c.call("Memory", 0, s.slipstream); err != nil {
		return err
	}
	if base != nil {
		s.baseline.Add(peakCold, base.peak)
	}
	if !s.options.Verify {
		return nil
	}
	if err := c.call("Verify", 0, nil); err != nil || base == nil || s.off {
		return err
	}
	return base.verify(ctx)
}

// startBaseline measures the baseline's cold start: in one transaction, as kube-proxy
// loads its rules, and in several where the mode has them. It returns nil when there is
// nothing to measure changes of.
func (s *syncs) startBaseline(ctx context.Context) (*baseline, error) {
	if s.off {
		return nil, nil
	}
	b, err := newBaseline(s.options)
	if errors.Is(err, errNotInstalled) {
		s.off, s.skipped = true, err.Error()
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	if !s.coldLong {
		bench.Quiet(ctx)
		err := b.load(ctx, s.baseline)
		s.coldLong = errors.Is(err, errTimeout)
		if err := s.skip("cold start", err); err != nil {
			return nil, errors.Join(err, b.close())
		}
	}
	if !s.options.iptables() && s.options.Services > splitServices {
		bench.Quiet(ctx)
		err := b.loadSplit(ctx, s.baseline)
		s.off = false
		if err := s.skip("cold start in parts", err); err != nil {
			return nil, errors.Join(err, b.close())
		}
	}
	if s.off {
		return nil, b.close()
	}
	return b, nil
}

// skip turns the baseline off when a step of it took too long. Other errors stay errors.
func (s *syncs) skip(step string, err error) error {
	if !errors.Is(err, errTimeout) {
		return err
	}
	s.off, s.skipped = true, fmt.Sprintf("%s: %v", step, err)
	return nil
}
