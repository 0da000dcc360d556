// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// LoadOptions say how hard a load works, and how long.
type LoadOptions struct {
	// Workers make connections side by side, each one after the other; 1 if 0.
	Workers int
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
}

// String sums up in one line.
func (s LoadStats) String() string {
	return fmt.Sprintf("%d ok %v, %d failed %v, first: %v", s.OK, s.Servers, s.Failed, s.Failures, s.First)
}

// Load is many short connections to one destination.
type Load struct {
	cancel  context.CancelFunc
	done    chan struct{}
	started atomic.Int64

	mu    sync.Mutex
	stats LoadStats
}

// StartLoad makes many short connections (see Connect) in the background, one after the
// other per worker, until Count is reached, ctx is done or Load.Stop is called.
func (m *Machine) StartLoad(ctx context.Context, p Protocol, dest netip.AddrPort, opts LoadOptions) (*Load, error) {
	l := &Load{done: make(chan struct{}), stats: LoadStats{Servers: map[string]int64{}, Failures: map[string]int64{}}}
	ctx, l.cancel = context.WithCancel(ctx)
	if err := m.track(l, true); err != nil {
		l.cancel()
		return nil, m.wrap(fmt.Errorf("load %v %v: %w", p, dest, err))
	}
	var wg sync.WaitGroup
	for range max(opts.Workers, 1) {
		wg.Go(func() { l.work(ctx, opts, func() (Reply, error) { return m.Connect(p, dest, opts.Connect...) }) })
	}
	go func() {
		wg.Wait()
		l.cancel()
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
	for ctx.Err() == nil && (l.started.Add(1) <= opts.Count || opts.Count == 0) {
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
