// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
)

// traffic is made during the whole test, and must not fail.
type traffic struct {
	env     *env
	loads   []*lab.Load
	streams []*lab.Stream
	what    []string // of loads and then of streams
}

// load makes new connections, about a hundred a second.
func (r *traffic) load(from *lab.Machine, p lab.Protocol, to netip.AddrPort) {
	r.env.Helper()
	l, err := from.StartLoad(context.Background(), p, to, lab.LoadOptions{
		Pace: 10 * time.Millisecond, Connect: []lab.ConnectOption{lab.Timeout(*connectTimeout)},
	})
	r.env.check(err)
	r.loads = append(r.loads, l)
	r.what = append(r.what, fmt.Sprintf("%v %v from %s", p, to, from.Name()))
	r.env.Cleanup(func() { l.Stop() })
}

// stream opens a connection and keeps it.
func (r *traffic) stream(from *lab.Machine, p lab.Protocol, to netip.AddrPort) *lab.Stream {
	r.env.Helper()
	s, err := from.Stream(p, to, 20*time.Millisecond, lab.Timeout(*connectTimeout))
	r.env.check(err)
	r.streams = append(r.streams, s)
	r.env.Cleanup(func() { s.Close() })
	return s
}

// streamTo opens a connection to a certain pod and keeps it.
func (r *traffic) streamTo(pod *runningPod, from *lab.Machine, to netip.AddrPort) *lab.Stream {
	r.env.Helper()
	for range 200 {
		s, err := from.Stream(lab.TCP, to, 20*time.Millisecond)
		r.env.check(err)
		if s.Stats().Server == pod.Name() {
			r.streams = append(r.streams, s)
			r.env.Cleanup(func() { s.Close() })
			return s
		}
		r.env.check(s.Close())
	}
	r.env.Fatalf("of 200 connections from %s to %v, none is answered by %s", from.Name(), to, pod.Name())
	return nil
}

// fine fails the test if a connection has failed or a stream was cut so far.
func (r *traffic) fine(when string) {
	r.env.Helper()
	for i, l := range r.loads {
		s := l.Stats()
		if s.Failed > 0 {
			r.env.Errorf("%s: %s: %v", when, r.what[i], s)
		}
	}
	for _, s := range r.streams {
		if st := s.Stats(); st.Failed > 0 || st.Ended {
			r.env.Errorf("%s: stream: %+v", when, st)
		}
	}
	if r.env.Failed() {
		r.env.FailNow()
	}
}

// goals are how many connections each load has to have made for n more ones.
func (r *traffic) goals(n int64) (goals []int64) {
	for _, l := range r.loads {
		goals = append(goals, l.Stats().OK+n)
	}
	return goals
}

// made fails unless the loads have made so many connections.
func (r *traffic) made(goals []int64) error {
	for i, l := range r.loads {
		if s := l.Stats(); s.OK < goals[i] {
			return fmt.Errorf("%s: %v", r.what[i], s)
		}
	}
	return nil
}

// more waits until each load has made n more connections, and each stream n echoes.
func (r *traffic) more(n int64) {
	r.env.Helper()
	goals := r.goals(n)
	for _, s := range r.streams {
		goals = append(goals, s.Stats().Received+n)
	}
	r.env.until("more traffic", func() error {
		r.fine("while waiting for more")
		if err := r.made(goals); err != nil {
			return err
		}
		for i, s := range r.streams {
			select {
			case <-s.Done(): // closed by the test; a broken one is not fine
				continue
			default:
			}
			if st := s.Stats(); st.Received < goals[len(r.loads)+i] {
				return fmt.Errorf("stream: %+v", st)
			}
		}
		return nil
	})
}

// unused waits until a pod has got no new connection for a while in which each load has
// made some.
func (r *traffic) unused(p *runningPod) {
	r.env.Helper()
	const some = 30
	before, since, goals := p.Served(), time.Now(), r.goals(some)
	r.env.until(p.Name()+" gets no more connections", func() error {
		if now := p.Served(); now != before {
			before, since, goals = now, time.Now(), r.goals(some)
		}
		if quiet := time.Since(since); quiet < 700*time.Millisecond {
			return fmt.Errorf("quiet for %v", quiet)
		}
		return r.made(goals)
	})
}
