// SPDX-License-Identifier: Apache-2.0

package fastpath

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/fastpath/iface"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"github.com/slipstream-proxy/slipstream/internal/node/netif"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// Controller keeps the fast path of one network namespace. It is a
// [dataplane.Dataplane] for the frontends of Services, and follows the interfaces
// while Run runs. Its methods are safe for concurrent use.
type Controller struct {
	config Config
	able   abilities
	settle func(netns int) error // nfnl.Settle, which takes an RCU grace period for each interface

	mu    sync.Mutex // not held while settling
	conn  *nfnl.Conn
	batch nfnl.Batch
	key   []byte

	valid     bool // the kernel has our table; false until the first Reconcile, and after a failure
	frontends frontends
	guard     guard

	links    map[int]netif.Interface // nil until they have been listed
	chosen   map[int]string          // those of them that take part
	devices  deviceSet               // what the kernel's flowtable has; nil when not known
	members  deviceSet               // what the set of interfaces has
	hardware bool                    // what the flowtable is
	unsynced bool                    // devices are to be tried again
	stats    Stats
	said     map[string]string // what was complained of last, by message
}

var _ dataplane.Dataplane = (*Controller)(nil)

// New opens the way to the kernel and programs nothing yet. It needs
// CAP_NET_ADMIN, and Linux 5.13. The error wraps [ErrUnsupported] where the kernel
// has no flowtables: nothing is to be done then, and nothing need be. With a
// Threshold of 0 it does not ask.
func New(c Config) (*Controller, error) {
	if c.Interfaces == nil {
		c.Interfaces = iface.Default()
	}
	if c.Refresh == 0 {
		c.Refresh = DefaultRefresh
	}
	conn, err := nfnl.Dial(c.NetNS)
	if err != nil {
		return nil, err
	}
	if c.Commits != nil {
		conn.Share(c.Commits)
	}
	ctl := &Controller{config: c, conn: conn, settle: nfnl.Settle, said: map[string]string{}}
	if !ctl.off() {
		if ctl.able, err = probe(conn); err != nil {
			return nil, errors.Join(fmt.Errorf("fast path: %w", err), conn.Close())
		}
	}
	return ctl, nil
}

func (c *Controller) off() bool { return c.config.Threshold == 0 }

// Run follows the interfaces until ctx ends, and then returns nil. It may start
// before the first Reconcile or after. It leaves what is in the kernel, see Stop.
// An error is that interfaces cannot be listed.
func (c *Controller) Run(ctx context.Context) error {
	if c.off() {
		<-ctx.Done()
		return nil
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	wg.Go(func() { c.keep(ctx) })
	return netif.Namespace(c.config.NetNS).Watch(ctx, c.update)
}

// retry is how long after a failure the interfaces are tried again.
const retry = time.Second

// keep does what is to be done from time to time.
func (c *Controller) keep(ctx context.Context) {
	again := time.NewTicker(retry)
	defer again.Stop()
	var refresh <-chan time.Time
	if c.config.Refresh > 0 {
		t := time.NewTicker(c.config.Refresh)
		defer t.Stop()
		refresh = t.C
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-again.C:
			c.resync()
		case <-refresh:
			if err := c.Flush(Flush{All: true}); err != nil {
				klog.ErrorS(err, "Fast path: connections were not refreshed")
			}
		}
	}
}

// Reconcile implements dataplane.Dataplane. It needs nothing of full but its
// frontends. A table of an earlier run is kept where it fits, and with it what has
// been offloaded.
func (c *Controller) Reconcile(ctx context.Context, full *desired.Change) (dataplane.Stats, error) {
	if c.off() {
		err := c.Cleanup(ctx)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.valid = err == nil
		return dataplane.Stats{}, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.valid = false
	if err := c.list(); err != nil {
		c.stats.Errors++
		return dataplane.Stats{}, err
	}
	c.frontends.reset(len(full.Frontends))
	c.batch = nfnl.Batch{}
	if c.config.Scope == Services {
		c.write(full)
	}
	stats := dataplane.Stats{Elements: c.batch.Elements(), Bytes: c.batch.Len()}
	if err := c.build(); err != nil {
		c.stats.Errors++
		return stats, fmt.Errorf("fast path: %w", err)
	}
	c.release()
	c.valid = true
	// What is wrong with an interface is no reason to take the rest back.
	c.sync()
	if err := c.guard.reset(c); err != nil {
		c.stats.Errors++
		return stats, err
	}
	return stats, nil
}

// Apply implements dataplane.Dataplane.
func (c *Controller) Apply(ctx context.Context, change *desired.Change) (dataplane.Stats, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.valid {
		return dataplane.Stats{}, errors.New("fast path: Apply without a Reconcile before it")
	}
	if c.off() || c.config.Scope == All {
		return dataplane.Stats{}, nil
	}
	c.valid = false // until the kernel has it too
	if change.Rebuild {
		return dataplane.Stats{}, errors.New("fast path: Apply of a change that only Reconcile can make")
	}
	c.batch.Reset()
	c.write(change)
	stats := dataplane.Stats{Elements: c.batch.Elements(), Bytes: c.batch.Len()}
	if err := c.conn.Commit(0, &c.batch); err != nil {
		c.stats.Errors++
		return stats, fmt.Errorf("fast path: %w", c.explain(err))
	}
	c.release()
	c.valid = true
	return stats, nil
}

// keepBatch is the largest buffer, in bytes, that is kept for the next change.
const keepBatch = 1 << 20

// release gives the memory of an unusually large batch back.
func (c *Controller) release() {
	if c.batch.Len() > keepBatch {
		c.batch = nfnl.Batch{}
	}
}

// explain adds to a refusal of the kernel's which frontend it is about.
func (c *Controller) explain(err error) error {
	var refused *nfnl.BatchError
	if !errors.As(err, &refused) {
		return err
	}
	for i := range families {
		if refused.Object == families[i].frontends.Name {
			if k, ok := parseFrontendKey(refused.Key); ok {
				return fmt.Errorf("frontend %s: %w", k, err)
			}
		}
	}
	return err
}

// Cleanup implements dataplane.Dataplane. When it returns, all connections are back on
// the slow path; none is cut.
func (c *Controller) Cleanup(ctx context.Context) error {
	switch err := c.deleteTable(); {
	case errors.Is(err, unix.ENOENT):
		return nil
	case err != nil:
		return fmt.Errorf("fast path: deleting table %s %s: %w", table.Family, table.Name, err)
	}
	return c.settle(c.config.NetNS)
}

func (c *Controller) deleteTable() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.valid = false
	c.devices, c.members = nil, nil
	if _, err := c.conn.Table(table); err != nil {
		return err
	}
	var b nfnl.Batch
	b.DeleteTable(table)
	return c.conn.Commit(0, &b)
}

// Close implements dataplane.Dataplane: it leaves what is in the kernel, so that it
// goes on without anybody who adds interfaces or Services to it. That is for
// handing over to another Controller at once; everybody else calls Stop.
func (c *Controller) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.valid = false
	return c.conn.Close()
}

// Stop is Cleanup and Close: what nobody looks after any more is not to stay. Call
// it once Run has returned.
func (c *Controller) Stop() error {
	return errors.Join(c.Cleanup(context.Background()), c.Close())
}
