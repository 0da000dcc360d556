// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"strconv"
	"strings"
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
	// Pace is the time from one connection's begin to the next one's, of a worker; 0: no
	// wait. On UDP and SCTP a source port is used again after 49,000 connections (32,000 on
	// a node). If that is within 30 s (UDP) or 10 s (SCTP), conntrack sends it to the same
	// backend as before, even if that was removed: while endpoints change, keep the rate
	// below 1,000 a second.
	Pace    time.Duration
	Connect []ConnectOption // of each connection
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

// StartLoad makes many short connections (see Connect) in the background, until Count is
// reached, ctx is done or Load.Stop is called.
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

// Stop starts no more connections, waits for those under way and returns the numbers.
func (l *Load) Stop() LoadStats {
	l.cancel()
	return l.Wait()
}

// Close is Stop without the numbers.
func (l *Load) Close() error {
	l.Stop()
	return nil
}

// Stream is a long-lived client: an established connection (or, on UDP, one socket) on which
// numbered messages are sent at an interval and their echoes are awaited.
type Stream struct {
	machine *Machine
	conn    *client
	stop    chan struct{}
	done    chan struct{}

	mu      sync.Mutex
	closing bool
	stats   StreamStats
}

// StreamStats are the counters of a stream. A message on its way is in Sent and in
// neither Received nor Failed.
type StreamStats struct {
	Sent     int64 // messages sent
	Received int64 // echoes that were received in time
	Failed   int64 // messages without an echo in time, or that could not be sent

	Server string         // that answered last
	Moved  int64          // on UDP, echoes from another server than the previous echo's
	Seen   netip.AddrPort // the client as the server saw it last
	Source netip.AddrPort // the client's own address and port
	Local  netip.AddrPort // the server's own address and port at first, after any DNAT

	Last error // of the last message that failed
	// Ended says that the connection broke (reset, closed by the server). Never on UDP, nor
	// by Stream.Close.
	Ended bool
}

// Stream connects to a lab server and then sends a message at each interval, or later while
// the previous echo is awaited. The option Timeout bounds the connection and each echo.
func (m *Machine) Stream(p Protocol, dest netip.AddrPort, interval time.Duration, opts ...ConnectOption) (*Stream, error) {
	c, err := m.dial(p, dest, opts)
	if err != nil {
		return nil, err
	}
	s := &Stream{
		machine: m, conn: c, stop: make(chan struct{}), done: make(chan struct{}),
		stats: StreamStats{Server: c.reply.Server, Seen: c.reply.Seen, Source: c.reply.Source, Local: c.reply.Local},
	}
	go s.run(interval)
	if err := m.track(s, true); err != nil {
		_ = s.Close()
		return nil, m.wrap(fmt.Errorf("stream %v %v: %w", p, dest, err))
	}
	return s, nil
}

// Stats returns the numbers so far.
func (s *Stream) Stats() StreamStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stats
}

// Done returns a channel that is closed when no more messages are sent.
func (s *Stream) Done() <-chan struct{} { return s.done }

// Close ends the stream. Calls after the first do nothing.
func (s *Stream) Close() error {
	s.mu.Lock()
	if !s.closing {
		s.closing = true
		close(s.stop)
		_ = s.conn.Close() // ends a read that waits
	}
	s.mu.Unlock()
	<-s.done
	s.machine.untrack(s)
	return nil
}

func (s *Stream) run(interval time.Duration) {
	defer close(s.done)
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for n := int64(1); ; n++ {
		if a, err := s.send(n); !s.count(a, err) {
			_ = s.conn.Close()
			return
		}
		select {
		case <-s.stop:
			return
		case <-tick.C:
		}
	}
}

// send sends message n and waits for its echo; late echoes of earlier messages
// are passed over.
func (s *Stream) send(n int64) (a answer, err error) {
	s.mu.Lock()
	s.stats.Sent++
	s.mu.Unlock()
	if err := s.conn.SetDeadline(time.Now().Add(s.conn.timeout)); err != nil {
		return a, err
	}
	if err := s.conn.send([]byte(strconv.FormatInt(n, 10) + "\n")); err != nil {
		return a, err
	}
	for {
		var line []byte
		if a, line, err = s.conn.receive(); err != nil {
			return a, err
		}
		got, perr := strconv.ParseInt(strings.TrimSuffix(string(line), "\n"), 10, 64)
		switch {
		case perr != nil || got > n:
			return a, fmt.Errorf("message %d: echo is %q", n, line)
		case got == n:
			return a, nil
		}
	}
}

// count counts a message's result and reports whether the stream goes on.
func (s *Stream) count(a answer, err error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	udp := s.conn.proto == UDP
	switch {
	case err == nil:
		s.stats.Received++
		if udp {
			if a.Server != s.stats.Server {
				s.stats.Moved++
			}
			s.stats.Server, s.stats.Seen = a.Server, a.Client
		}
		return true
	case s.closing:
		s.stats.Sent--
		return false
	}
	s.stats.Failed++
	s.stats.Last = err
	s.stats.Ended = !udp && !errors.Is(err, ErrTimeout)
	return !s.stats.Ended
}
