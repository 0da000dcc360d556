// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/slipstream-proxy/slipstream/test/lab"
)

// flow is a client that makes one short connection after the other. Unlike
// lab.Load it remembers each, so that the demo can tell when things changed.
type flow struct {
	from *lab.Pod
	to   frontend
	once sync.Once
	stop chan struct{}
	done chan struct{}

	mu       sync.Mutex
	visits   []visit // oldest first
	failures []visit // those among them
}

// visit is one connection.
type visit struct {
	begin, end time.Time
	server     string // who answered; "" if nobody did
	err        error
}

// flowTimeout is longer than TCP needs to repeat a lost SYN twice: a connection
// that is merely slow, on a machine that is busy, has not failed.
const flowTimeout = 5 * time.Second

// newFlow starts a flow: a connection every pace, or as often as they get done.
func newFlow(from *lab.Pod, to frontend, pace time.Duration) *flow {
	f := &flow{from: from, to: to, stop: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(f.done)
		tick := time.NewTicker(pace)
		defer tick.Stop()
		for {
			f.visit()
			select {
			case <-f.stop:
				return
			case <-tick.C:
			}
		}
	}()
	return f
}

func (f *flow) visit() {
	v := visit{begin: time.Now()}
	r, err := f.from.Connect(f.to.proto, f.to.addr, lab.Timeout(flowTimeout))
	v.end, v.server, v.err = time.Now(), r.Server, err
	f.mu.Lock()
	f.visits = append(f.visits, v)
	if err != nil {
		f.failures = append(f.failures, v)
	}
	f.mu.Unlock()
}

// close ends the flow, after the connection that is under way. Calls after the
// first do nothing.
func (f *flow) close() {
	f.once.Do(func() { close(f.stop) })
	<-f.done
}

// name says who connects how.
func (f *flow) name() string {
	return fmt.Sprintf("%s on %s, %s", f.from.Name(), f.from.Node().Name(), family(f.to.addr.Addr()))
}

// since returns the visits that began at t or later, oldest first.
func (f *flow) since(t time.Time) []visit {
	f.mu.Lock()
	defer f.mu.Unlock()
	i, _ := slices.BinarySearchFunc(f.visits, t, func(v visit, t time.Time) int { return v.begin.Compare(t) })
	return slices.Clone(f.visits[i:])
}

// total returns how many visits there have been, and those that failed.
func (f *flow) total() (all int, failures []visit) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.visits), slices.Clone(f.failures)
}

// answered keeps the visits that a server answered; any server if it is "".
func answered(visits []visit, server string) (some []visit) {
	for _, v := range visits {
		if v.err == nil && (server == "" || v.server == server) {
			some = append(some, v)
		}
	}
	return some
}
