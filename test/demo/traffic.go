// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
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
	load *lab.Load

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
func newFlow(ctx context.Context, from *lab.Machine, p lab.Protocol, to netip.AddrPort, pace time.Duration, count int64) (f *flow, err error) {
	f = &flow{}
	f.load, err = from.StartLoad(ctx, p, to, lab.LoadOptions{
		Pace: pace, Count: count, Connect: []lab.ConnectOption{lab.Timeout(connectTimeout)},
		Result: func(begin time.Time, r lab.Reply, err error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.attempts = append(f.attempts, attempt{begin, time.Now(), r.Server, err})
		},
	})
	return f, err
}

// since returns the connections that began at t or later.
func (f *flow) since(t time.Time) []attempt {
	f.mu.Lock()
	defer f.mu.Unlock()
	i, _ := slices.BinarySearchFunc(f.attempts, t, func(a attempt, t time.Time) int { return a.begin.Compare(t) })
	return slices.Clone(f.attempts[i:])
}

// answers returns those of the connections since t that the server answered.
func (f *flow) answers(t time.Time, server string) []attempt {
	return slices.DeleteFunc(f.since(t), func(a attempt) bool { return a.err != nil || a.server != server })
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
	for range 200 {
		if len(all) == n*len(servers) {
			return all, nil
		}
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
	return all, fmt.Errorf("connections to %v go to %v, want %d to each of %v", to, has, n, servers)
}

// alive waits until each of the streams has echoed three more messages.
func alive(ctx context.Context, streams []*lab.Stream) bool {
	before := map[*lab.Stream]int64{}
	for _, s := range streams {
		before[s] = s.Stats().Received
	}
	return len(streams) > 0 && await(ctx, func() bool {
		return !slices.ContainsFunc(streams, func(s *lab.Stream) bool { return s.Stats().Received < before[s]+3 })
	})
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
