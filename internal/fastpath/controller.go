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
	"github.com/slipstream-proxy/slipstream/internal/fastpath/ebpf"
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
	able   abilities
	engine *ebpf.Engine          // nil for the flowtable
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

	links    map[int]link // by index
	devices  deviceSet    // in the kernel's flowtable and, unless unsynced, the set of interfaces
	hardware bool         // the flowtable has the flag for hardware
	unsynced bool         // the kernel has not accepted the devices yet
	stats    Stats
	said     map[string]string // the last error logged with each message
	log      klog.Logger       // Run's
}

var _ dataplane.Dataplane = (*Controller)(nil)

// New opens a netlink socket and programs nothing. It needs CAP_NET_ADMIN, and Linux 5.13.
// The error wraps [ErrUnsupported] if the kernel has no flowtables. With a Threshold of 0,
// flowtables are not needed.
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
	ctl := &Controller{config: c, conn: conn, settle: nfnl.Settle, said: map[string]string{}, log: klog.Background()}
	if !ctl.Off() {
		if err = ctl.open(); err != nil {
			return nil, errors.Join(fmt.Errorf("fast path: %w", err), conn.Close())
		}
	}
	return ctl, nil
}

// open probes the kernel and opens the engine.
func (c *Controller) open() (err error) {
	c.config.Engine = cmp.Or(c.config.Engine, Flowtable)
	if c.config.Engine != EBPF {
		c.able, err = probe(c.conn)
		if c.config.Engine == Flowtable || !errors.Is(err, ErrUnsupported) {
			c.config.Engine = Flowtable
			return err
		}
		c.config.Engine = EBPF
	}
	engine, err := ebpf.Open(c.config.NetNS, c.config.withoutTCX)
	if err != nil {
		return withoutEBPF{err}
	}
	c.engine = engine
	return nil
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
	c.mu.Unlock()
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	wg.Go(func() { repeat(ctx, retry, c.resync) })
	if c.engine != nil {
		wg.Go(func() { c.engine.Run(ctx) })
	}
	if c.config.Refresh > 0 {
		wg.Go(func() { repeat(ctx, c.config.Refresh, c.refresh) })
	}
	return netif.Namespace(c.config.NetNS).Watch(ctx, func(all []netif.Interface) { c.update(ctx, all) })
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
	stats, err := func() (dataplane.Stats, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.sequence.Begin()
		stats, err := c.reconcile(ctx, full)
		return stats, c.failed(err)
	}()
	return stats, c.flushExcluded(ctx, full, !c.config.Exclude.empty(), err)
}

// flushExcluded returns connections to the slow path if a change, which was programmed with the
// given error, excludes frontends or pods, or the configuration of this run excludes any. They may
// have been offloaded before.
func (c *Controller) flushExcluded(ctx context.Context, change *desired.Change, configured bool, err error) error {
	excludes := func(f desired.FrontendChange) bool {
		return f.New != nil && f.New.SlowPath && (f.Old == nil || !f.Old.SlowPath)
	}
	switch {
	case err != nil:
		return err
	case configured: // packets of both directions have to pass the rules
		return c.Flush(ctx, Flush{All: true, Hold: ruleHold})
	case len(change.SlowPathIPs.Added) == 0 && !slices.ContainsFunc(change.Frontends, excludes):
		return nil
	}
	return c.Flush(ctx, Flush{})
}

func (c *Controller) reconcile(ctx context.Context, full *desired.Change) (stats dataplane.Stats, err error) {
	if err := c.list(); err != nil {
		return stats, err
	}
	c.frontends = make(map[desired.FrontendKey]desired.ServicePort, len(full.Frontends))
	c.pods = map[netip.Addr]bool{}
	c.addresses = map[netip.Addr]bool{}
	c.batch = nfnl.Batch{}
	c.write(full)
	c.config.Exclude.writeAddresses(&c.batch)
	stats = dataplane.Stats{Elements: c.batch.Elements(), Bytes: c.batch.Len()}
	if err := c.build(ctx); err != nil {
		return stats, err
	}
	if c.engine == nil { // of an earlier run
		if err := ebpf.Remove(c.config.NetNS); err != nil {
			return stats, err
		}
	}
	c.batch = nfnl.Batch{} // frees it
	c.sequence.Done()
	// A refused interface does not prevent the rest.
	c.sync(ctx)
	return stats, c.guard.reset(c)
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
	if f == nil || !offloadable(f.Protocol) || f.SlowPath != (c.config.Scope == All) {
		return s, false
	}
	return f.Service, true
}

// write adds the frontends and addresses of a change to the batch and to c.frontends and c.pods.
// The element of a frontend has its Service as a comment, so it is replaced if the Service changes.
func (c *Controller) write(change *desired.Change) {
	for _, a := range change.SlowPathIPs.Removed {
		if c.pods[a] {
			c.batch.DeleteElement(table, familyOf(a).pods, a.AsSlice())
			delete(c.pods, a)
		}
	}
	for _, a := range change.SlowPathIPs.Added {
		if !c.pods[a] {
			c.batch.AddElement(table, familyOf(a).pods, a.AsSlice(), nil, "")
			c.pods[a] = true
		}
	}
	for _, a := range change.NodeAddresses.Removed {
		c.batch.DeleteElement(table, familyOf(a).nodeAddresses, a.AsSlice())
		delete(c.addresses, a)
	}
	for _, a := range change.NodeAddresses.Added {
		c.batch.AddElement(table, familyOf(a).nodeAddresses, a.AsSlice(), nil, "")
		c.addresses[a] = true
	}
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
	var refused *nfnl.BatchError
	if !errors.As(err, &refused) {
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
	err = nil
	if c.engine != nil {
		err = c.engine.Detach()
	}
	return errors.Join(err, ebpf.Remove(c.config.NetNS))
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
	if c.engine != nil {
		return errors.Join(c.engine.Close(), c.conn.Close())
	}
	return c.conn.Close()
}

// Stop is Cleanup and Close, for after Run has returned.
func (c *Controller) Stop() error {
	return errors.Join(c.Cleanup(context.Background()), c.Close())
}
