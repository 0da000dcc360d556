// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Stream is a long-lived client: an established connection (or, on UDP, one
// socket) on which numbered messages go out at an interval and their echoes are
// awaited.
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

	// Server is the server that answered last. On TCP and SCTP it is the same
	// for the connection's life.
	Server string
	// Moved counts, on UDP, the echoes from another server than the previous
	// echo's.
	Moved int64
	// Seen is the client as the server saw it last.
	Seen netip.AddrPort
	// Source is the client's own address and port.
	Source netip.AddrPort

	// Last is the error of the last message that failed; nil if none did.
	Last error
	// Ended says that the connection broke (reset, closed by the server) and no
	// more messages are sent. Never on UDP, nor by Stream.Close.
	Ended bool
}

// Stream connects to a lab server and then sends a message at each interval, or
// later while the previous echo is awaited. The timeout (option
// Timeout, by default DefaultTimeout) bounds the connection and each echo.
func (m *Machine) Stream(p Protocol, dest netip.AddrPort, interval time.Duration, opts ...ConnectOption) (*Stream, error) {
	if interval <= 0 {
		return nil, m.wrap(fmt.Errorf("stream %v %v: interval %v is not positive", p, dest, interval))
	}
	c, err := m.dial(p, dest, opts)
	if err != nil {
		return nil, err
	}
	s := &Stream{
		machine: m, conn: c, stop: make(chan struct{}), done: make(chan struct{}),
		stats: StreamStats{Server: c.reply.Server, Seen: c.reply.Seen, Source: c.reply.Source},
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

// Done returns a channel that is closed when no more messages are sent: the
// connection broke, or Close was called.
func (s *Stream) Done() <-chan struct{} { return s.done }

// Close ends the stream. A message on its way is not counted as failed. Calls
// after the first do nothing.
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
