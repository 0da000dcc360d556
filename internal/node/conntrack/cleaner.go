// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// CleanFunc deletes the entries of stale flows, as [Conn.Clean] does.
type CleanFunc func(context.Context, []desired.StaleFlows) (Stats, error)

// Cleaner cleans in its own goroutine, because the kernel takes long to walk its table.
// Flows that are enqueued meanwhile are cleaned together afterwards. Those of a call that failed are
// cleaned with the next ones or after a second, at most three times in all.
//
// It may delete a flow that began after its StaleFlows were found, to an endpoint that was
// added meanwhile. The flow's next packet then gets a backend again. So failed flows are soon given up:
// what they say about endpoints ages.
type Cleaner struct {
	mu     sync.Mutex // held while the queue is written or closed
	queue  chan []desired.StaleFlows
	closed bool

	ended chan struct{}
}

// retryAfter is the delay after a failure, and tries how often the same flows are cleaned.
const retryAfter, tries = time.Second, 3

// NewCleaner starts a Cleaner that calls clean with ctx, and done after each call, both in
// its goroutine. A Conn that clean uses must be closed after the Cleaner.
func NewCleaner(ctx context.Context, clean CleanFunc, done func(Stats, error)) *Cleaner {
	c := &Cleaner{queue: make(chan []desired.StaleFlows, 1), ended: make(chan struct{})}
	go func() {
		defer close(c.ended)
		var waiting [tries][]desired.StaleFlows // by the tries left, less one
		var again <-chan time.Time
		for {
			select {
			case flows, ok := <-c.queue:
				if !ok {
					return
				}
				waiting[tries-1] = flows
			case <-again:
			}
			stats, err := clean(ctx, slices.Concat(waiting[:]...))
			copy(waiting[:], waiting[1:])
			waiting[tries-1], again = nil, nil
			if err == nil {
				clear(waiting[:])
			} else if slices.ContainsFunc(waiting[:], func(w []desired.StaleFlows) bool { return len(w) > 0 }) {
				again = time.After(retryAfter)
			}
			done(stats, err)
		}
	}()
	return c
}

// Enqueue makes the Cleaner clean flows soon, and returns at once. It retains their slices.
// After Close it does nothing.
func (c *Cleaner) Enqueue(flows []desired.StaleFlows) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || len(flows) == 0 {
		return
	}
	select {
	case waiting := <-c.queue:
		flows = append(waiting, flows...)
	default:
	}
	c.queue <- flows // has room
}

// Close returns when clean has been called for all flows that were enqueued before. It may be
// called more than once.
func (c *Cleaner) Close() {
	c.mu.Lock()
	if !c.closed {
		c.closed = true
		close(c.queue)
	}
	c.mu.Unlock()
	<-c.ended
}
