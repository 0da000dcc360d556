// SPDX-License-Identifier: Apache-2.0

package fastpath

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/fastpath/iface"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"github.com/slipstream-proxy/slipstream/internal/node/netif"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
)

// Controller programs the fast path of one network namespace. It is a
// [dataplane.Dataplane] for the frontends of Services and the pods that opt out, and follows the interfaces while Run
// runs. Its methods are safe for concurrent use.
type Controller struct {
	config Config
	byName bool // see probe
	engine fastEngine
	settle func(netns int) error // nfnl.Settle, which takes an RCU grace period for each interface

	mu    sync.Mutex // not held while settling
	conn  *nfnl.Conn
	batch nfnl.Batch
	key   []byte // a buffer

	sequence  dataplane.Sequence
	frontends map[desired.FrontendKey]desired.ServicePort // in the kernel's sets
	pods      map[netip.Addr]bool                         // addresses of pods that opt out, in the kernel's sets
	addresses map[netip.Addr]bool                         // that serve NodePorts, also in the kernel's sets
	guard     guard
	foreign   foreign
	others    others

	excluded   Flush     // of connections that are newly excluded
	excludedAt time.Time // when such last returned to the slow path

	links    map[int]link // by index
	devices  deviceSet    // in the kernel's flowtable and, unless unsynced, the set of interfaces
	unsynced bool         // the kernel has not accepted the devices yet
	stats    Stats

	built     bool              // the table of an earlier run was replaced or adopted
	mustFlush bool              // flows of an earlier run were adopted, and have not passed the rules since
	said      map[string]string // the last error logged with each message
	log       klog.Logger       // Run's
}

var _ dataplane.Programmer = (*Controller)(nil)

// New opens a netlink socket and programs nothing. It needs CAP_NET_ADMIN, and Linux 5.13.
// The error wraps a feature.Missing if the kernel has no flowtables. With a Threshold of 0,
// flowtables are not needed.
func New(c Config) (*Controller, error) {
	ctl, err := newController(c)
	if err == nil && !ctl.Off() {
		if err = ctl.open(); err != nil {
			return nil, errors.Join(fmt.Errorf("fast path: %w", err), ctl.close())
		}
	}
	return ctl, err
}

// newController makes one whose engine is not open.
func newController(c Config) (*Controller, error) {
	if c.Interfaces == nil {
		c.Interfaces = iface.Default()
	}
	c.Refresh, c.excludePause = cmp.Or(c.Refresh, DefaultRefresh), cmp.Or(c.excludePause, excludePause)
	conn, err := nfnl.Dial(c.NetNS)
	if err != nil {
		return nil, err
	}
	rules, err := nfnl.Dial(c.NetNS)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	if c.Commits != nil {
		conn.Share(c.Commits)
	}
	rules.Share(conn.Commits())
	ctl := &Controller{config: c, conn: conn, settle: nfnl.Settle, said: map[string]string{}, log: klog.Background()}
	ctl.foreign.conn = rules
	ctl.engine = &flowtableEngine{Controller: ctl}
	return ctl, nil
}

// close closes the engine, if one is open, and the sockets.
func (c *Controller) close() error {
	return errors.Join(c.engine.close(), c.conn.Close(), c.foreign.conn.Close())
}

// Off reports whether the fast path is off: Config.Threshold is 0.
func (c *Controller) Off() bool { return c.config.Threshold == 0 }

// retry is the time after which a refused change of interfaces is tried again.
const retry = time.Second

// Run follows the interfaces until ctx ends, and then returns nil. It may start before the
// first Reconcile or after. It leaves the kernel's objects, see Stop. It returns an error if
// interfaces cannot be listed.
func (c *Controller) Run(ctx context.Context) error {
	if c.Off() {
		<-ctx.Done()
		return nil
	}
	c.mu.Lock()
	c.log = klog.FromContext(ctx)
	run := c.engine.run
	c.mu.Unlock()
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	wg.Go(func() { repeat(ctx, retry, c.resync) })
	wg.Go(func() { repeat(ctx, retry, c.followRules) })
	wg.Go(func() {
		repeat(ctx, retry, func(ctx context.Context) {
			if err := c.returnExcluded(ctx); err != nil && ctx.Err() == nil {
				klog.FromContext(ctx).Error(err, "Fast path: connections that are excluded did not return to the slow path")
			}
		})
	})
	wg.Go(func() { run(ctx) })
	if c.config.Refresh > 0 {
		wg.Go(func() { repeat(ctx, c.config.Refresh, c.refresh) })
	}
	return netif.Namespace(c.config.NetNS).Watch(ctx, func(all []netif.Interface) {
		// The flows of a flowtable keep the MTU of their start if they are IPv6: all are offloaded again.
		if mtu := c.change(ctx, all); mtu {
			c.refresh(ctx)
		}
	})
}

// repeat calls do with a pause before each call, until ctx ends.
func repeat(ctx context.Context, pause time.Duration, do func(context.Context)) {
	_ = wait.PollUntilContextCancel(ctx, pause, false, func(ctx context.Context) (bool, error) {
		do(ctx)
		return false, nil
	}) // the error is ctx's
}

func (c *Controller) refresh(ctx context.Context) {
	if err := c.Flush(ctx, Flush{All: true}); err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "Fast path: connections were not refreshed")
	}
}

// failed counts an error and adds the context to it. It returns nil for nil.
func (c *Controller) failed(err error) error {
	if err == nil {
		return nil
	}
	c.stats.Errors++
	return fmt.Errorf("fast path: %w", err)
}

// Reconcile implements dataplane.Dataplane. Of full it reads only the frontends and
// SlowPathIPs. It keeps the flowtable of an earlier run if it fits, and thus the flows.
func (c *Controller) Reconcile(ctx context.Context, full *desired.Change) (dataplane.Stats, error) {
	if c.Off() {
		return dataplane.Stats{}, c.Cleanup(ctx)
	}
	c.followRules(ctx)
	var all bool
	stats, err := func() (dataplane.Stats, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.sequence.Begin()
		stats, err := c.reconcile(ctx, full)
		all = c.mustFlush || len(c.config.Exclude.Addresses)+len(c.config.Exclude.Marks)+len(c.config.Exclude.DSCP) > 0
		return stats, c.failed(err)
	}()
	if err = c.flushExcluded(ctx, full, all, err); err == nil {
		c.mu.Lock()
		c.mustFlush = false
		c.mu.Unlock()
	}
	return stats, err
}

// excludePause is the least time between two flushes because Services or pods opt out. The kernel's
// flowtable is flushed as a whole, and each tenant may cause it.
const excludePause = 10 * time.Second

// flushExcluded returns connections to the slow path if a change, which was programmed with the
// given error, excludes frontends or pods, or if all have to pass the rules: the configuration of this run excludes some,
// or a policy may have changed since an earlier run. They may have been offloaded before.
func (c *Controller) flushExcluded(ctx context.Context, change *desired.Change, all bool, err error) error {
	switch {
	case err != nil:
		return err
	case all: // packets of both directions have to pass the rules
		return c.Flush(ctx, Flush{All: true, Hold: ruleHold})
	}
	c.mu.Lock()
	f := &c.excluded
	for _, m := range change.Sets[desired.SlowPathIPs].Added {
		f.Addresses = append(f.Addresses, m.Addr)
	}
	for _, x := range change.Frontends {
		switch {
		case x.New == nil || !x.New.SlowPath || x.Old != nil && x.Old.SlowPath:
		case x.Key().OnNode():
			for a := range c.addresses {
				f.Frontends = append(f.Frontends, x.Key().At(a))
			}
		default:
			f.Frontends = append(f.Frontends, x.Key())
		}
	}
	const mostExcluded = 1000 // frontends and addresses that are flushed by themselves
	if len(f.Frontends)+len(f.Addresses) > mostExcluded {
		*f = Flush{All: true}
	}
	c.mu.Unlock()
	return c.returnExcluded(ctx)
}

// returnExcluded returns connections that are newly excluded to the slow path, unless others have just
// returned: then Run does later.
func (c *Controller) returnExcluded(ctx context.Context) error {
	c.mu.Lock()
	f := c.excluded
	if due := f.All || len(f.Frontends)+len(f.Addresses) > 0; !due || time.Since(c.excludedAt) < c.config.excludePause {
		c.mu.Unlock()
		return nil
	}
	c.excluded, c.excludedAt = Flush{}, time.Now()
	c.mu.Unlock()
	err := c.Flush(ctx, f)
	if err != nil {
		c.mu.Lock()
		c.excluded = Flush{All: true}
		c.mu.Unlock()
	}
	return err
}

func (c *Controller) reconcile(ctx context.Context, full *desired.Change) (stats dataplane.Stats, err error) {
	if err := c.list(); err != nil {
		return stats, err
	}
	c.batch = nfnl.Batch{}
	c.writeFull(full)
	stats = dataplane.Stats{Elements: c.batch.Elements(), Bytes: c.batch.Len()}
	if err := c.build(ctx); err != nil {
		return stats, err
	}
	if err := c.engine.programmed(); err != nil {
		return stats, err
	}
	c.batch = nfnl.Batch{} // frees it
	c.sequence.Done()
	// A refused interface does not prevent the rest.
	c.sync(ctx)
	c.guard = guard{} // so that all is checked
	return stats, c.guard.expect(c)
}

// Apply implements dataplane.Dataplane.
func (c *Controller) Apply(ctx context.Context, change *desired.Change) (dataplane.Stats, error) {
	if c.Off() {
		return dataplane.Stats{}, nil
	}
	stats, err := c.apply(ctx, change)
	return stats, c.flushExcluded(ctx, change, false, err)
}

func (c *Controller) apply(ctx context.Context, change *desired.Change) (stats dataplane.Stats, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.sequence.BeginApply(ctx, change); err != nil {
		return stats, fmt.Errorf("fast path: %w", err)
	}
	c.batch.Reset()
	c.write(change)
	if stats = (dataplane.Stats{Elements: c.batch.Elements(), Bytes: c.batch.Len()}); !c.batch.Empty() {
		if err := c.conn.Commit(0, &c.batch); err != nil {
			return stats, c.failed(c.explain(err))
		}
	}
	c.sequence.Done()
	return stats, nil
}

// lists returns the Service of a frontend, if it is in the sets. They have the frontends that
// are offloaded or, with the scope All, those that are not.
func (c *Controller) lists(f *desired.Frontend) (s desired.ServicePort, is bool) {
	if f == nil || f.Protocol != desired.TCP && f.Protocol != desired.UDP || f.SlowPath != (c.config.Scope == All) {
		return s, false
	}
	return f.Service, true
}

// writeFull is write for a full description.
func (c *Controller) writeFull(full *desired.Change) {
	c.frontends = make(map[desired.FrontendKey]desired.ServicePort, len(full.Frontends))
	c.pods = map[netip.Addr]bool{}
	c.addresses = map[netip.Addr]bool{}
	c.write(full)
	for _, p := range desired.Disjoint(slices.Clone(c.config.Exclude.Addresses)) {
		first, last := nfnl.Bounds(p)
		c.batch.AddInterval(table, familyOf(p.Addr()).excluded, first, last)
	}
}

// write adds the frontends and addresses of a change to the batch and to c.frontends and c.pods.
// The element of a frontend has its Service as a comment, so it is replaced if the Service changes.
func (c *Controller) write(change *desired.Change) {
	put := func(of desired.Set, record map[netip.Addr]bool, set func(*family) *nfnl.Set) {
		for m, added := range change.Sets[of].All() {
			switch to := set(familyOf(m.Addr)); {
			case added && !record[m.Addr]:
				c.batch.AddElement(table, to, m.Addr.AsSlice(), nil, "")
			case !added && record[m.Addr]:
				c.batch.DeleteElement(table, to, m.Addr.AsSlice())
			}
		}
		change.Sets[of].Note(record)
	}
	put(desired.SlowPathIPs, c.pods, func(f *family) *nfnl.Set { return f.pods })
	put(desired.NodeAddresses, c.addresses, func(f *family) *nfnl.Set { return f.nodeAddresses })
	for _, del := range []bool{true, false} {
		for i := range change.Frontends {
			f := &change.Frontends[i]
			k := f.Key()
			was, listed := c.lists(f.Old)
			is, lists := c.lists(f.New)
			if listed == lists && was == is {
				continue
			}
			set := setOf(k)
			c.key = frontendKey(c.key[:0], k)
			switch {
			case del && listed:
				c.batch.DeleteElement(table, set, c.key)
				delete(c.frontends, k)
			case !del && lists:
				c.batch.AddElement(table, set, c.key, nil, is.String())
				c.frontends[k] = is
			}
		}
	}
}

// explain adds the frontend to a refusal by the kernel.
func (c *Controller) explain(err error) error {
	refused, is := errors.AsType[*nfnl.BatchError](err)
	if !is {
		return err
	}
	for i := range families {
		if f := &families[i]; refused.Object == f.frontends.Name || refused.Object == f.nodePorts.Name {
			if k, ok := families[i].parseFrontendKey(refused.Key); ok {
				return fmt.Errorf("frontend %s: %w", k, err)
			}
		}
	}
	return err
}

// Cleanup implements dataplane.Dataplane. When it returns, all connections are on the slow
// path; none is interrupted.
func (c *Controller) Cleanup(context.Context) error {
	err := c.deleteTable()
	if err == nil {
		err = c.settle(c.config.NetNS)
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("fast path: deleting %s: %w", tableText, err)
	}
	all, err := netif.Namespace(c.config.NetNS).List()
	return errors.Join(err, c.switchGRO(all, func(int) bool { return false }), c.engine.cleanup())
}

func (c *Controller) deleteTable() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sequence.Begin()
	c.devices = nil
	if _, err := c.conn.Table(table); err != nil {
		return err
	}
	var b nfnl.Batch
	b.DeleteTable(table)
	return c.conn.Commit(0, &b)
}

// Close implements dataplane.Dataplane. The kernel's table remains, for another Controller
// that takes it over at once. Use Stop otherwise.
func (c *Controller) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sequence.Begin()
	return c.close()
}

// Stop is Cleanup and Close, for after Run has returned.
func (c *Controller) Stop() error {
	return errors.Join(c.Cleanup(context.Background()), c.Close())
}
