// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"context"
	"sync"

	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// CleanFunc deletes the entries of stale flows, as [Conn.Clean] does.
type CleanFunc func(context.Context, []desired.StaleFlows) (Stats, error)

// Cleaner cleans in a goroutine of its own, so that its callers do not wait while the
// kernel walks its table. Flows that are enqueued meanwhile are cleaned together
// afterwards.
//
// A flow may be hit that began after its StaleFlows were found: to an endpoint
// that came back meanwhile, or that is new beside those of an Only. Its next
// packet chooses among the backends again.
type Cleaner struct {
	clean CleanFunc
	done  func(Stats, error)

	mu     sync.Mutex
	more   sync.Cond // there is something in queue, or closed has been set
	queue  []desired.StaleFlows
	closed bool

	ended chan struct{}
}

// NewCleaner starts a Cleaner that calls clean with ctx, and done after each call, both in
// its goroutine. A Conn that clean uses is to be closed after the Cleaner.
func NewCleaner(ctx context.Context, clean CleanFunc, done func(Stats, error)) *Cleaner {
	c := &Cleaner{clean: clean, done: done, ended: make(chan struct{})}
	c.more.L = &c.mu
	go c.run(ctx)
	return c
}

// Enqueue has flows cleaned soon, and returns at once. The slices that they hold
// are read later. After Close it does nothing.
func (c *Cleaner) Enqueue(flows []desired.StaleFlows) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.queue = append(c.queue, flows...)
		c.more.Signal()
	}
}

// Close returns when all is cleaned that was enqueued before, or clean has failed. Calls after the
// first do nothing more.
func (c *Cleaner) Close() {
	c.mu.Lock()
	c.closed = true
	c.more.Signal()
	c.mu.Unlock()
	<-c.ended
}

func (c *Cleaner) run(ctx context.Context) {
	defer close(c.ended)
	for {
		c.mu.Lock()
		for len(c.queue) == 0 && !c.closed {
			c.more.Wait()
		}
		flows := c.queue
		c.queue = nil
		c.mu.Unlock()
		if len(flows) == 0 {
			return // closed
		}
		c.done(c.clean(ctx, flows))
	}
}
