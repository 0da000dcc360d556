// SPDX-License-Identifier: Apache-2.0

// Package proxy is the loop that keeps the kernel in line with the objects:
// events of a source go into the desired state, and what changed there goes to
// a backend.
package proxy

import (
	"context"
	"errors"
	"net/netip"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/observe/metrics"
	"github.com/slipstream-proxy/slipstream/internal/source"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
)

// Options are how the loop behaves.
type Options struct {
	// MinSyncPeriod is the least time between two syncs. A change after a
	// quiet time is programmed at once; those that follow within this time
	// are programmed together when it is over.
	MinSyncPeriod time.Duration

	// CheckPeriod is how often the loop looks whether somebody else has
	// damaged what was programmed.
	CheckPeriod time.Duration

	// VerifyPeriod is how often all that the kernel has is compared with what was
	// programmed, in the background and with low priority; 0 for never. OpenReader
	// makes what reads it. It is called by other goroutines.
	VerifyPeriod time.Duration
	OpenReader   func(context.Context) (Reader, error)

	// NodeAddresses delivers all addresses of this node, as a
	// netif.Namespace.WatchAddresses does: once soon, and again when they are others. Nil
	// when none are needed.
	NodeAddresses func(ctx context.Context, deliver func([]netip.Addr)) error

	// HealthChecks and StaleFlows are told what follows a change once the
	// kernel has it. Nil where nobody is to be told.
	HealthChecks HealthChecks
	StaleFlows   StaleFlows

	// FastPath is told of frontends too. Nil where there is none.
	FastPath FastPath

	// NodeName is the name of this node's object, which says whether the node
	// is eligible (see Proxy.NodeEligible); empty for none. With NodeRequired
	// it is not until there is that object.
	NodeName     string
	NodeRequired bool

	// NodeWait is how long the object of a node that is required may be missing
	// until an administrator is told; 30 seconds when 0.
	NodeWait time.Duration

	// PodCIDRs says that traffic of this node's pods is recognized by the ranges
	// that the Node object has.
	PodCIDRs bool

	// LateAfter is how long a change may wait until the proxy is not healthy;
	// a minute when 0.
	LateAfter time.Duration

	// Ready is called once, in a goroutine of its own, when the kernel first
	// has everything. Run waits for it. It may be nil.
	Ready func(context.Context)

	// Events is told what an administrator must see. Nil for nobody.
	Events Events
}

// Events takes what an administrator must see, as an events.Recorder does.
type Events interface {
	Warning(reason, note string)
}

// Proxy is the loop. It is used once.
type Proxy struct {
	source  source.Source
	state   *desired.State
	backend dataplane.Dataplane
	metrics *metrics.Metrics
	options Options

	synced    bool         // the source has delivered what there was
	addressed bool         // the node's addresses are known
	pending   bool         // the state has changes that the kernel has not
	full      bool         // only a full content will do
	notUntil  time.Time    // the next sync is held off until then
	backoff   wait.Backoff // after failures
	repairs   wait.Backoff // of repairs that follow each other closely
	repaired  time.Time    // when the last one was asked for

	followUp    followUp
	listens     nodePortAddrs
	lateness    lateness
	triggers    triggers
	eligibility eligibility
	node        nodeObject
	fastPath    fastPathState
	verifying   verifying
	background  sync.WaitGroup // goroutines that Run waits for
}

// New makes a loop. State and backend are the loop's from now on.
func New(s source.Source, st *desired.State, b dataplane.Dataplane, m *metrics.Metrics, o Options) *Proxy {
	if o.LateAfter == 0 {
		o.LateAfter = lateAfter
	}
	if o.NodeWait == 0 {
		o.NodeWait = nodeWait
	}
	return &Proxy{
		source: s, state: st, backend: b, metrics: m, options: o,
		addressed: o.NodeAddresses == nil,
		full:      true,
		backoff:   newBackoff(),
		triggers:  triggers{since: time.Now()},
	}
}

// newBackoff is how long to wait after failures: from 100 ms to 30 s.
func newBackoff() wait.Backoff {
	return wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Jitter: 0.1, Steps: 10, Cap: 30 * time.Second}
}

// Run works until ctx ends, which is no error, or until one that it hears from
// fails. The kernel keeps what has been programmed.
func (p *Proxy) Run(ctx context.Context) error {
	defer p.background.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	in := p.listen(ctx)
	defer in.stop()
	check := time.NewTicker(p.options.CheckPeriod)
	defer check.Stop()
	hold := time.NewTimer(0)
	defer hold.Stop()
	p.startVerifying()
	for {
		p.beginLook(ctx)
		select {
		case <-ctx.Done():
			return nil
		case err := <-in.failed:
			return err
		case batch := <-in.events:
			p.take(batch)
			p.takeWaiting(in.events)
		case addrs := <-in.addresses:
			p.state.SetNodeAddresses(addrs)
			p.addressed, p.listens.unsure = true, true
			p.queued()
		case <-p.node.overdue():
			p.tellNodeMissing()
		case <-hold.C:
		case <-check.C:
			p.check(ctx)
			p.checkFastPath(ctx)
		case <-p.verifying.overdue():
			p.verifying.due = true
		case s := <-p.verifying.look:
			p.seen(s)
		}
		if !p.pending || !p.synced || !p.addressed {
			continue
		}
		p.lateness.waiting()
		if wait := time.Until(p.notUntil); wait > 0 {
			hold.Reset(wait)
			continue
		}
		p.sync(ctx)
		if p.pending { // it failed
			hold.Reset(time.Until(p.notUntil))
		}
	}
}

// takeWaiting takes the batches that came during the last sync, so that they
// become one.
func (p *Proxy) takeWaiting(events <-chan []source.Event) {
	for range waitingBatches {
		select {
		case batch := <-events:
			p.take(batch)
		default:
			return
		}
	}
}

func (p *Proxy) take(batch []source.Event) {
	for _, e := range batch {
		if e.Type == source.Synced {
			p.synced = true
		}
		p.note(e, ApplyEvent(p.state, e))
	}
	p.watchNode()
	p.queued()
}

// note takes down what the state has no use for of an event that it was told.
func (p *Proxy) note(e source.Event, changed bool) {
	switch o := e.Object.(type) {
	case *corev1.Service:
		p.metrics.ServiceChange()
	case *discoveryv1.EndpointSlice:
		p.metrics.EndpointChange(changed)
		switch {
		case e.Type == source.Delete:
			p.triggers.gone(o.Namespace, o.Name)
		case changed:
			p.triggers.set(o)
		}
	case *corev1.Node:
		p.listens.unsure = true
		if o.Name != p.options.NodeName {
			break
		}
		p.node.note(o, e.Type == source.Set)
		if e.Type == source.Set {
			p.eligibility.set(o)
		}
	}
}

// queued says that there is something to program.
func (p *Proxy) queued() {
	p.pending = true
	p.metrics.Queued(time.Now())
}

// sync brings the kernel in line. What the kernel refuses as a change is tried
// as the full content at once; if that fails too, again after a while, with
// whatever has changed until then.
func (p *Proxy) sync(ctx context.Context) {
	err := p.program(ctx)
	if err != nil && !p.full && ctx.Err() == nil {
		klog.ErrorS(err, "The kernel refused a change, programming everything again")
		p.full = true
		err = p.program(ctx)
	}
	if ctx.Err() != nil {
		return // the loop ends, and the kernel keeps what it has
	}
	if err != nil {
		delay := p.backoff.Step()
		klog.ErrorS(err, "Could not program the kernel, will try again", "after", delay.Round(time.Millisecond))
		p.warn("FailedToProgram", err)
		p.notUntil = time.Now().Add(delay)
		return
	}
	p.pending, p.full = false, false
	now := time.Now()
	if p.options.Ready != nil && p.Updated().IsZero() {
		p.background.Go(func() { p.options.Ready(ctx) })
	}
	p.lateness.done(now)
	p.metrics.Synced(now)
	p.metrics.NoLocalEndpoints(p.state.NoLocalEndpoints())
	p.backoff = newBackoff()
	p.notUntil = now.Add(p.options.MinSyncPeriod)
}

// warn tells an administrator of an error.
func (p *Proxy) warn(reason string, err error) {
	if p.options.Events != nil {
		p.options.Events.Warning(reason, err.Error())
	}
}

// next is what to program: the change, or everything when p.full is or becomes
// true.
func (p *Proxy) next() *desired.Update {
	if !p.full {
		c := p.state.Change()
		if !c.Rebuild {
			return c
		}
		p.full = true
	}
	return p.state.Full()
}

// program is one try.
func (p *Proxy) program(ctx context.Context) error {
	c := p.next()
	for _, problem := range c.Problems {
		klog.ErrorS(nil, "Part of an object was not acted on", "object", problem.Object, "field", problem.Field, "reason", problem.Reason)
		p.metrics.ObjectProblems.Inc()
	}
	p.metrics.Services.Set(float64(p.state.Services()))
	p.followUp.expect(c, p.full)
	if p.full || !c.Empty() {
		if err := p.apply(ctx, &c.Change); err != nil {
			return err
		}
	}
	if len(p.triggers.waiting) > 0 {
		p.triggers.done(time.Now(), p.metrics)
	}
	p.follow(ctx, c)
	return nil
}

// apply hands a change to the backend.
func (p *Proxy) apply(ctx context.Context, c *desired.Change) error {
	kind, apply := metrics.Change, p.backend.Apply
	if p.full {
		kind, apply = metrics.Full, p.backend.Reconcile
	}
	about := metrics.Both
	if !p.full {
		about = families(c)
	}
	p.verifying.touched.note(c, p.full)
	start := time.Now()
	stats, err := apply(ctx, c)
	took := time.Since(start)
	if err != nil {
		p.metrics.Refused(p.full, about, took)
		return err
	}
	p.metrics.Programmed(p.full, about, took)
	p.metrics.Elements.Add(float64(stats.Elements))
	level := klog.Level(2)
	if p.full {
		level = 0
		debug.FreeOSMemory() // a full content takes many times what a change does
	}
	klog.V(level).InfoS("Programmed the kernel", "kind", kind, "frontends", len(c.Frontends), "pools", len(c.Pools), "elements", stats.Elements, "took", took.Round(time.Microsecond))
	return nil
}

// quietAfterRepair is how long nothing must have been damaged for a repair to be
// made at once.
const quietAfterRepair = 10 * time.Second

// check finds damage and asks for its repair.
func (p *Proxy) check(ctx context.Context) {
	if p.full {
		return // a full sync is due anyway
	}
	switch err := p.backend.Check(ctx); {
	case errors.Is(err, dataplane.ErrDamaged):
		p.damaged(err)
	case errors.Is(err, dataplane.ErrDue):
		p.queued()
		p.full = true
	case err != nil && ctx.Err() == nil:
		klog.ErrorS(err, "Could not check what is programmed")
	}
}

// damaged has damage be repaired: at once, unless somebody does it again and again.
func (p *Proxy) damaged(err error) {
	klog.ErrorS(err, "Programming everything again")
	p.metrics.Repairs.Inc()
	p.warn("Damaged", err)
	p.queued()
	p.full = true
	p.notUntil = time.Time{}
	if time.Since(p.repaired) < quietAfterRepair {
		p.notUntil = time.Now().Add(p.repairs.Step())
	} else {
		p.repairs = newBackoff()
	}
	p.repaired = time.Now()
}

// lateAfter is how long a change may wait until the kernel has it, if nobody says.
// It is kube-proxy's: twice its usual sync period.
const lateAfter = time.Minute

// lateness knows since when changes have been waiting. Its zero value says that
// none are.
type lateness struct {
	since   atomic.Pointer[time.Time]
	updated atomic.Pointer[time.Time] // when none was last
}

// waiting says that there is a change; those before count from their own start.
func (l *lateness) waiting() {
	if l.since.Load() == nil {
		now := time.Now()
		l.since.Store(&now)
	}
}

// done says that the kernel has all changes.
func (l *lateness) done(now time.Time) {
	l.since.Store(nil)
	l.updated.Store(&now)
}

// late says whether a change has waited for too long.
func (l *lateness) late(after time.Duration) bool {
	since := l.since.Load()
	return since != nil && time.Since(*since) >= after
}

// Healthy says whether the kernel has what it should, or has been without for
// less than Options.LateAfter. It may be called by any goroutine.
func (p *Proxy) Healthy() bool { return !p.lateness.late(p.options.LateAfter) }

// Updated is when the kernel last had all changes; zero before it first had. It
// may be called by any goroutine.
func (p *Proxy) Updated() time.Time {
	if at := p.lateness.updated.Load(); at != nil {
		return *at
	}
	return time.Time{}
}
