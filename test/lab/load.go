// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"
)

// LoadOptions say how hard a load works, and how long.
type LoadOptions struct {
	// Workers make connections side by side, each one after the other; 1 if 0.
	Workers int
	// Duration ends the load; 0 leaves that to the context and Stop.
	Duration time.Duration
	// Count ends the load after so many connections of all workers; 0: no end.
	Count int64
	// Pace is the time from one connection's begin to the next one's, of a
	// worker; 0: no wait.
	//
	// On UDP and SCTP a source port is used again after about 49,000 connections
	// of the machine (32,000 on a node). Within 30 s (UDP) or 10 s (SCTP) of its
	// last use, conntrack sends it to the same backend as before, even if that was
	// removed. While endpoints change, use a Pace that keeps the rate below 1,000 a
	// second.
	Pace time.Duration
	// Connect are options of each connection. A Source with a port makes sense
	// only with one worker.
	Connect []ConnectOption
	// Result, if not nil, is called with each connection's begin and result. With
	// several workers, calls overlap.
	Result func(begin time.Time, r Reply, err error)
}

// LoadStats are the counters of a load.
type LoadStats struct {
	OK       int64            // connections that got an answer
	Failed   int64            // those that did not
	Servers  map[string]int64 // OK by the server's name
	Failures map[string]int64 // Failed by Outcome
	First    error            // the first failure, whole; nil if none
	Elapsed  time.Duration
}

// String sums up in one line: "120 ok in 1s (web-1 61, web-2 59), 0 failed".
func (s LoadStats) String() string {
	line := fmt.Sprintf("%d ok in %v%s, %d failed%s", s.OK, s.Elapsed.Round(time.Millisecond),
		list(s.Servers), s.Failed, list(s.Failures))
	if s.First != nil {
		line += fmt.Sprintf(", first: %v", s.First)
	}
	return line
}

func list(counts map[string]int64) string {
	if len(counts) == 0 {
		return ""
	}
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%s %d", k, counts[k]))
	}
	return " (" + strings.Join(parts, ", ") + ")"
}

// Load is many short connections to one destination.
type Load struct {
	machine *Machine
	begin   time.Time
	cancel  context.CancelFunc
	done    chan struct{}

	mu      sync.Mutex
	started int64
	stats   LoadStats
}

// Load makes many short connections (see Connect), one after the other per
// worker, until Duration or Count is reached or ctx is done, and returns the
// numbers. At least one of the three must bound it.
func (m *Machine) Load(ctx context.Context, p Protocol, dest netip.AddrPort, opts LoadOptions) (LoadStats, error) {
	l, err := m.StartLoad(ctx, p, dest, opts)
	if err != nil {
		return LoadStats{}, err
	}
	return l.Wait(), nil
}

// StartLoad is Load in the background, to be ended by Load.Stop.
func (m *Machine) StartLoad(ctx context.Context, p Protocol, dest netip.AddrPort, opts LoadOptions) (*Load, error) {
	if opts.Workers < 0 || opts.Duration < 0 || opts.Count < 0 || opts.Pace < 0 {
		return nil, m.wrap(fmt.Errorf("load %v %v: negative option in %+v", p, dest, opts))
	}
	workers := max(opts.Workers, 1)
	o := newConnectOptions(opts.Connect)
	l := &Load{
		machine: m, begin: time.Now(), done: make(chan struct{}),
		stats: LoadStats{Servers: map[string]int64{}, Failures: map[string]int64{}},
	}
	if opts.Duration > 0 {
		ctx, l.cancel = context.WithTimeout(ctx, opts.Duration)
	} else {
		ctx, l.cancel = context.WithCancel(ctx)
	}
	if err := m.track(l); err != nil {
		l.cancel()
		return nil, m.wrap(fmt.Errorf("load %v %v: %w", p, dest, err))
	}
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() { l.work(ctx, opts, func() (Reply, error) { return m.exchange(p, dest, o) }) })
	}
	go func() {
		wg.Wait()
		l.cancel()
		l.mu.Lock()
		l.stats.Elapsed = time.Since(l.begin)
		l.mu.Unlock()
		m.untrack(l)
		close(l.done)
	}()
	return l, nil
}

func (l *Load) work(ctx context.Context, opts LoadOptions, once func() (Reply, error)) {
	var tick <-chan time.Time
	if opts.Pace > 0 {
		t := time.NewTicker(opts.Pace)
		defer t.Stop()
		tick = t.C
	}
	for ctx.Err() == nil && l.mayStart(opts.Count) {
		begin := time.Now()
		reply, err := once()
		l.count(reply, err)
		if opts.Result != nil {
			opts.Result(begin, reply, err)
		}
		if tick == nil {
			continue
		}
		select {
		case <-ctx.Done():
		case <-tick:
		}
	}
}

func (l *Load) mayStart(limit int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if limit > 0 && l.started == limit {
		return false
	}
	l.started++
	return true
}

func (l *Load) count(r Reply, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.stats.Failed++
		l.stats.Failures[Outcome(err)]++
		if l.stats.First == nil {
			l.stats.First = err
		}
		return
	}
	l.stats.OK++
	l.stats.Servers[r.Server]++
}

// Stats returns the numbers so far.
func (l *Load) Stats() LoadStats {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.stats
	s.Servers, s.Failures = maps.Clone(s.Servers), maps.Clone(s.Failures)
	if s.Elapsed == 0 {
		s.Elapsed = time.Since(l.begin)
	}
	return s
}

// Wait waits for the load's end and returns its numbers.
func (l *Load) Wait() LoadStats {
	<-l.done
	return l.Stats()
}

// Stop starts no more connections, waits for those under way and returns the
// numbers. Connections under way go to their end, or to their timeout, and are
// counted.
func (l *Load) Stop() LoadStats {
	l.cancel()
	return l.Wait()
}

// Close is Stop without the numbers.
func (l *Load) Close() error {
	l.Stop()
	return nil
}
