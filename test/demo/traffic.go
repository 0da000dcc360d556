// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/slipstream-proxy/slipstream/test/lab"
)

// Timeouts of connections and of messages on them. TCP repeats lost packets within
// these times: a slow machine is not taken for a failure.
const (
	connectTimeout = 5 * time.Second
	echoTimeout    = 10 * time.Second
)

// flow makes one short connection after the other from one client to one Service, and
// remembers each.
type flow struct {
	client string
	load   *lab.Load

	mu       sync.Mutex
	attempts []attempt // by their end
}

// attempt is one connection.
type attempt struct {
	begin, end time.Time
	server     string // that answered; "" if none did
	err        error
}

// newFlow starts a flow that makes a connection every pace, count in all if that is not 0.
func newFlow(ctx context.Context, from *lab.Machine, p lab.Protocol, to netip.AddrPort, pace time.Duration, count int64) (*flow, error) {
	f := &flow{client: from.Name()}
	o := lab.LoadOptions{Pace: pace, Count: count, Connect: []lab.ConnectOption{lab.Timeout(connectTimeout)}, Result: f.add}
	var err error
	f.load, err = from.StartLoad(ctx, p, to, o)
	return f, err
}

func (f *flow) add(begin time.Time, r lab.Reply, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.attempts = append(f.attempts, attempt{begin, time.Now(), r.Server, err})
}

// since returns the connections that began at t or later.
func (f *flow) since(t time.Time) []attempt {
	f.mu.Lock()
	defer f.mu.Unlock()
	i, _ := slices.BinarySearchFunc(f.attempts, t, func(a attempt, t time.Time) int { return a.begin.Compare(t) })
	return slices.Clone(f.attempts[i:])
}

// answers returns those of the connections since t that the server answered.
func (f *flow) answers(t time.Time, server string) (some []attempt) {
	for _, a := range f.since(t) {
		if a.err == nil && a.server == server {
			some = append(some, a)
		}
	}
	return some
}

// flowed waits until each flow has made 5 connections that began after t, so that all
// that began before are over.
func flowed(ctx context.Context, flows []*flow, t time.Time) {
	await(ctx, func() bool {
		return !slices.ContainsFunc(flows, func(f *flow) bool { return len(f.since(t)) < 5 })
	})
}

// streamsTo opens connections on which messages go back and forth, until each of the
// servers has n. It gives up after many tries.
func streamsTo(from *lab.Pod, to netip.AddrPort, servers []string, n int) (all []*lab.Stream, err error) {
	has := map[string]int{}
	for tries := 0; len(all) < n*len(servers) && tries < 200; tries++ {
		s, err := from.Stream(lab.TCP, to, 20*time.Millisecond, lab.Timeout(echoTimeout))
		if err != nil {
			return all, err
		}
		server := s.Stats().Server
		if has[server] == n || !slices.Contains(servers, server) {
			_ = s.Close()
			continue
		}
		has[server]++
		all = append(all, s)
	}
	if len(all) < n*len(servers) {
		return all, fmt.Errorf("connections to %v go to %v, want %d to each of %v", to, has, n, servers)
	}
	return all, nil
}

// alive waits until each of the streams has echoed three more messages.
func alive(ctx context.Context, streams []*lab.Stream) bool {
	before := make([]int64, len(streams))
	for i, s := range streams {
		before[i] = s.Stats().Received
	}
	return len(streams) > 0 && await(ctx, func() bool {
		for i, s := range streams {
			if s.Stats().Received < before[i]+3 {
				return false
			}
		}
		return true
	})
}

// totals are the results of all traffic.
type totals struct {
	made, refused, failed int64
	why                   string // the failures by kind: " (3 timeout)"
	ended                 int    // streams
	echoed, lost          int64  // messages
}

func (d *demo) totals() (t totals) {
	why := map[string]int64{}
	for _, f := range slices.Concat(d.kinds, d.web, d.orders) {
		s := f.load.Stats()
		t.made += s.OK + s.Failed
		for kind, n := range s.Failures {
			if kind == lab.Outcome(lab.ErrRefused) && slices.Contains(d.orders, f) {
				t.refused += n // the step noEndpoints checks when
				continue
			}
			t.failed += n
			why[kind] += n
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(why)) {
		t.why += fmt.Sprintf(" (%d %s)", why[kind], kind)
	}
	for _, s := range d.streams {
		stats := s.Stats()
		t.echoed += stats.Received
		t.lost += stats.Failed
		if stats.Ended {
			t.ended++
		}
	}
	return t
}

// webSince counts the connections to web since t that a pod answered that is to answer,
// and all others.
func (d *demo) webSince(t time.Time) (ok, failed int) {
	for _, f := range d.web {
		for _, a := range f.since(t) {
			if a.err != nil || slices.Contains(webLeaving, a.server) {
				failed++
			} else {
				ok++
			}
		}
	}
	return ok, failed
}
