// SPDX-License-Identifier: Apache-2.0

// Package proxy is the main loop: it applies events of a source to the desired state, and
// programs the resulting changes into a dataplane.
package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"net/netip"
	"os"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/logonce"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"github.com/slipstream-proxy/slipstream/internal/observe/metrics"
	"github.com/slipstream-proxy/slipstream/internal/source"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
)

// Options configure the loop. Functions and interfaces may be nil where they are not needed.
type Options struct {
	MinSyncPeriod time.Duration // least time between two syncs: changes within it are programmed together at its end
	CheckPeriod   time.Duration // of Dataplane.Check, unless the dataplane tells when it is due

	// Readers returns the netfilter sockets of other processes, as nfnl.Readers.Look does. While changes
	// continue, syncs wait for programs that read the ruleset (see pace).
	Readers func() ([]nfnl.Reader, error)

	// VerifyPeriod is the period of comparing the kernel's whole content with the
	// programmed content, in the background and with low priority; 0 for never.
	// OpenReader opens the Reader for that. It is called by other goroutines.
	VerifyPeriod time.Duration
	OpenReader   func(context.Context) (Reader, error)

	// NodeAddresses delivers all addresses of this node, at the start and after each
	// change, as netif.Namespace.WatchAddresses does.
	NodeAddresses func(ctx context.Context, deliver func([]netip.Addr)) error

	// These are called when the kernel has a change. FastPath is called by other goroutines.
	HealthChecks HealthChecks
	Relays       Relays
	StaleFlows   StaleFlows
	FastPath     Follower
	Sockets      Follower

	// FlowDestinations lists the destinations of UDP and SCTP flows, before translation, as
	// conntrack.Conn does.
	FlowDestinations func(context.Context) ([]desired.FrontendKey, error)

	Loads Loads                                                     // updated while there are Services with least-connection scheduling
	Probe func(_ context.Context, _ desired.Target, dns bool) error // as load.Probe, for outlier detection, which needs Loads too

	// PolicyChanged is called some time after a NetworkPolicy has changed, in another
	// goroutine, and again after an error.
	PolicyChanged func(context.Context) error

	// ResetDeletedNodes resets TCP connections to endpoints of Nodes that were deleted. The
	// source has to deliver the metadata of all Nodes.
	ResetDeletedNodes bool

	// NodeName is the name of this node's object, which determines whether the node is eligible (see
	// Proxy.NodeEligible). With NodeRequired, the node is not eligible before the object exists, and there is a
	// warning when it has been missing for NodeWait, 30 seconds if 0.
	NodeName     string
	NodeRequired bool
	NodeWait     time.Duration

	PodCIDRs  bool                  // the Node's spec.podCIDRs tell traffic of this node's pods
	LateAfter time.Duration         // after which a change that waits makes the proxy unhealthy; a minute if 0
	Ready     func(context.Context) // called once, in its own goroutine, after the first successful sync; Run waits for it
	Events    Events
}

// Events receives warnings for administrators, as implemented by events.Recorder.
type Events interface {
	Warning(reason, note string)
	OnService(service types.NamespacedName, reason, note string)
}

// Proxy is the loop. It is used once.
type Proxy struct {
	source  source.Source
	state   *desired.State
	backend dataplane.Programmer
	metrics *metrics.Metrics
	options Options
	log     klog.Logger // Run's

	synced    bool         // the source has delivered its initial content
	addressed bool         // the node's addresses are known
	pending   bool         // the state has changes that are not programmed
	full      bool         // the whole content must be programmed
	notUntil  time.Time    // the earliest time of the next sync
	backoff   wait.Backoff // after failures
	repairs   wait.Backoff // between repairs in quick succession
	repaired  time.Time    // time of the last repair

	held       map[string]source.Event // of namespaces that State.Postpones, the last of each object
	told       <-chan struct{}         // that a check is due, while all that checks do can wait for it
	pace       pace
	lookedBack bool // at flows to what an earlier run has programmed, or another program restored
	loads      loads
	outliers   outliers
	followUp   followUp
	nodePorts  []netip.Addr // that serve NodePorts and health checks; nil if not known yet
	lateness   lateness
	triggers   triggers
	eligible   atomic.Bool
	node       nodeObject
	fastPath   fastPathState
	sockets    socketState
	policies   policies
	departed   *departed // nil unless Options.ResetDeletedNodes
	verifying  verifying
	background sync.WaitGroup // goroutines that Run waits for

	checkFailed, checkFastPathFailed, verifyFailed, lookFailed logonce.Errors

	inspections  chan func() // calls of Inspect
	programmed   []Programming
	shrunk       map[desired.PoolID]time.Time
	verification *Verification
	rest         []desired.ServicePort // see dataplane.Stats
	behind       map[string]time.Time  // since when events of a namespace wait for rest
	failed       string                // why the last sync failed; "" if it did not

	refused  types.NamespacedName   // the Service that the last refusal was about
	leftOut  time.Time              // when a Service was left out; zero if none is
	suspects []types.NamespacedName // Services of a change that was refused, if it is not known which was
}

// New creates a loop. Only the loop may use st and b from now on.
func New(s source.Source, st *desired.State, b dataplane.Programmer, m *metrics.Metrics, o Options) *Proxy {
	o.LateAfter, o.NodeWait = cmp.Or(o.LateAfter, lateAfter), cmp.Or(o.NodeWait, nodeWait)
	p := &Proxy{
		source: s, state: st, backend: b, metrics: m, options: o,
		log:       klog.Background(),
		addressed: o.NodeAddresses == nil,
		full:      true,
		shrunk:    map[desired.PoolID]time.Time{},
		held:      map[string]source.Event{},
		behind:    map[string]time.Time{},
		policies:  policies{labels: map[string]uint64{}, seed: maphash.MakeSeed()},
		backoff:   newBackoff(),
		pace:      pace{look: o.Readers},
		outliers:  outliers{tenants: map[string]*tenant{}, done: make(chan func(), mostProbes)},
		triggers:  triggers{time.Now(), map[types.NamespacedName]trigger{}},

		inspections: make(chan func()),
	}
	p.eligible.Store(!o.NodeRequired)
	if o.ResetDeletedNodes {
		p.departed = newDeparted()
	}
	return p
}

// newBackoff returns the delays after failures: from 100 ms to 30 s.
func newBackoff() wait.Backoff {
	return wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Jitter: 0.1, Steps: 10, Cap: 30 * time.Second}
}

// Run runs the loop until ctx ends, which is not an error, or until an input fails. The
// kernel keeps the programmed content.
func (p *Proxy) Run(ctx context.Context) error {
	p.log = klog.FromContext(ctx)
	defer p.background.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	in := Listen(ctx, p.source, p.options.NodeAddresses)
	defer in.Stop()
	check, checked := time.NewTimer(p.options.CheckPeriod), time.Now()
	defer check.Stop()
	hold := time.NewTimer(0)
	defer hold.Stop()
	defer p.stopLoads()
	if p.options.VerifyPeriod > 0 && p.options.OpenReader != nil {
		p.verifying.next = time.After(p.options.VerifyPeriod)
	}
	for ctx.Err() == nil { // a sync that ended with ctx leaves a dataplane that must not be checked
		p.beginLook(ctx)
		select {
		case <-ctx.Done():
			return nil
		case err := <-in.Failed:
			return err
		case <-in.Events.Ready:
		case addrs := <-in.Addresses:
			p.state.SetNodeAddresses(addrs)
			p.addressed = true
			p.queued()
		case <-p.node.missing:
			p.warnNodeMissing()
		case <-hold.C:
		case <-check.C:
			checked = time.Now()
			p.check(ctx)
			p.checkFastPath(ctx)
			p.checkSockets(ctx)
			p.checkPolicies(ctx)
			p.pending = p.state.Warming() && p.state.Advance(time.Now()) || p.pending
			check.Reset(time.Until(checked.Add(p.options.CheckPeriod)))
			if p.told != nil {
				check.Reset(60 * p.options.CheckPeriod)
			}
		case <-p.told: // now, but never more often than without it
			p.told = nil
			check.Reset(time.Until(checked.Add(p.options.CheckPeriod)))
		case <-p.verifying.next:
			p.verifying.due = true
		case <-p.loads.due:
			p.updateLoads(ctx)
		case endProbe := <-p.outliers.done:
			endProbe()
		case s := <-p.verifying.look:
			p.endLook(s)
		case handle := <-p.fastPath.done:
			handle()
		case inspect := <-p.inspections:
			inspect()
		}
		if batch := in.Events.Take(); len(batch) > 0 { // also those that came during the last sync
			p.applyBatch(batch)
		}
		if f, lacks := p.state.LacksPrimary(); lacks { // kube-proxy ends too
			return fmt.Errorf("the family of this node's primary address, %s, is not served", f)
		}
		if !p.pending || !p.synced || !p.addressed {
			continue
		}
		p.lateness.waiting()
		if wait := p.wait(); wait > 0 {
			hold.Reset(wait)
			continue
		}
		p.sync(ctx)
		if p.pending { // it failed, or a part is left
			hold.Reset(time.Until(p.notUntil))
		}
	}
	return nil
}

// wait returns how long the next sync has to wait at least; 0 for not.
func (p *Proxy) wait() time.Duration {
	now := time.Now()
	if wait := p.notUntil.Sub(now); wait > 0 {
		return wait
	}
	if p.full {
		return 0 // what is damaged harms more than readers that start again
	}
	wait, err := p.pace.wait(now)
	if err != nil {
		p.lookFailed.Log(p.log, err, "Could not see which programs read the ruleset, so updates leave gaps for them")
	}
	return wait
}

// applyBatch applies events, and holds those of namespaces of which the kernel has a part of a large change only, the
// last one of each object. However fast it changes, all that others wait for is a part, and the loop applies one version.
func (p *Proxy) applyBatch(batch []source.Event) {
	queued := false
	for _, e := range batch {
		if e.Type == source.Synced {
			p.synced = true
		} else if p.postpones(e.Object.GetNamespace()) {
			p.held[source.Name(e.Object)] = e
			continue
		}
		changed := ApplyEvent(p.state, e)
		p.note(e, changed)
		_, isNode := e.Object.(*corev1.Node)
		queued = queued || changed || !isNode // a sync for each heartbeat of other Nodes would delay changes
	}
	p.watchNode()
	if queued {
		p.queued()
	}
}

// postpones reports whether events of a namespace have to wait: for the rest of a change, or, for a second at most, for
// slots of several of its pools, which each further version could change again.
func (p *Proxy) postpones(namespace string) bool {
	n := 0
	for _, port := range p.rest {
		if port.Namespace == namespace {
			n++
		}
	}
	if n <= 1 {
		delete(p.behind, namespace)
		return p.state.Postpones(namespace)
	}
	if p.behind[namespace].IsZero() {
		p.behind[namespace] = time.Now()
	}
	return time.Since(p.behind[namespace]) < time.Second || p.state.Postpones(namespace)
}

// applyHeld applies the events that were held, but those of namespaces whose change goes on.
func (p *Proxy) applyHeld() {
	held := slices.Collect(maps.Values(p.held))
	clear(p.held)
	p.applyBatch(held)
}

// note updates everything except the state for an event.
func (p *Proxy) note(e source.Event, changed bool) {
	switch o := e.Object.(type) {
	case *corev1.Service:
		p.metrics.ServiceChange()
	case *discoveryv1.EndpointSlice:
		p.metrics.EndpointChange(changed)
		name := types.NamespacedName{Namespace: o.Namespace, Name: o.Name}
		if d := p.departed; d != nil {
			var now []placed
			if e.Type == source.Set {
				now = placedIn(o)
			}
			d.setSlice(name, now)
		}
		switch {
		case e.Type == source.Delete:
			delete(p.triggers.waiting, name) // it was not about the deletion
		case changed:
			p.triggers.set(o)
		}
	case *metav1.PartialObjectMetadata: // of a Node
		switch d := p.departed; {
		case d == nil, o.Name == p.options.NodeName:
		case e.Type == source.Set:
			d.setNode(o.Name)
		default:
			d.deleteNode(o.Name)
		}
	case *networkingv1.NetworkPolicy:
		p.policyChanged()
	case *corev1.Pod, *corev1.Namespace:
		if p.options.PolicyChanged != nil && p.policies.noteLabels(e) {
			p.policyChanged()
		}
	case *corev1.Node:
		if o.Name == p.options.NodeName {
			p.noteNode(o, e.Type == source.Set)
		}
	}
}

// queued records that there is a change to program.
func (p *Proxy) queued() {
	p.pending = true
	p.metrics.Queued(time.Now())
}

// leaveOutFor is how long a Service is left out that the kernel has refused.
const leaveOutFor = 10 * time.Minute

// sync programs the pending changes. If the kernel refuses a change, it programs the full
// content at once. If that fails too because of the same Service, it leaves that out. If it is not known which Service
// it is, it leaves out half of those of the change, and takes them back if that does not help. Otherwise the next sync
// follows after a delay.
func (p *Proxy) sync(ctx context.Context) {
	defer p.applyHeld()
	err, halved := p.program(ctx), false
	for err != nil && ctx.Err() == nil {
		refusal, refused := errors.AsType[*dataplane.Refusal](err)
		former := p.refused
		if p.refused = (types.NamespacedName{}); refused {
			p.refused = refusal.Service.Owner()
		}
		unknown := refused && p.refused.Name == ""
		if !unknown {
			p.suspects = nil
		}
		if !p.full {
			p.log.Error(err, "The kernel refused a change, programming everything again")
			p.full = true
		} else if refused && p.refused == former && p.state.LeaveOut(former, "the kernel refuses it: "+err.Error()) {
			p.leftOut = time.Now()
		} else if unknown && p.leaveOutHalf(err) {
			p.leftOut, halved = time.Now(), true
		} else {
			if halved && p.state.TakeBack() {
				p.leftOut = time.Time{}
			}
			break
		}
		err = p.program(ctx)
	}
	if ctx.Err() != nil {
		return // the loop ends, and the kernel's content stays
	}
	if err != nil {
		delay := p.backoff.Step()
		p.log.Error(err, "Could not program the kernel, will try again", "after", delay.Round(time.Millisecond))
		p.warn("FailedToProgram", err)
		p.failed = err.Error()
		p.notUntil = time.Now().Add(delay)
		return
	}
	p.pending, p.full, p.failed, p.suspects = p.state.Pending() || len(p.rest) > 0, false, "", nil
	now := time.Now()
	if p.options.Ready != nil && p.Updated().IsZero() {
		p.background.Go(func() { p.options.Ready(ctx) })
	}
	p.lateness.since.Store(nil)
	p.lateness.updated.Store(&now)
	p.metrics.Synced(now)
	p.metrics.NoLocalEndpoints(p.state.NoLocalEndpoints())
	p.backoff = newBackoff()
	if !p.pending {
		p.notUntil = now.Add(p.options.MinSyncPeriod)
	}
	p.followLoads()
}

// leaveOutHalf leaves out half of the suspects, and reports whether there were some. Those that are
// innocent are taken back with the others, and become fewer each time.
func (p *Proxy) leaveOutHalf(err error) (some bool) {
	n := (len(p.suspects) + 1) / 2
	for _, name := range p.suspects[:n] {
		some = p.state.LeaveOut(name, "the kernel refuses it or another one: "+err.Error()) || some
	}
	p.suspects = p.suspects[n:]
	return some
}

func (p *Proxy) warn(reason string, err error) {
	if p.options.Events != nil {
		p.options.Events.Warning(reason, err.Error())
	}
}

// report reports parts of objects that are not programmed.
func (p *Proxy) report(all []desired.Problem) {
	for _, problem := range all {
		p.log.Error(nil, "Part of an object was not acted on", "object", problem.Object, "field", problem.Field, "reason", problem.Reason)
		p.metrics.ObjectProblems.Inc()
		p.warnOfService(problem)
	}
}

// warnOfService reports a problem of a Service to its owner.
func (p *Proxy) warnOfService(problem desired.Problem) {
	if p.options.Events == nil || problem.Service.Name == "" {
		return
	}
	reason := "InvalidService"
	if problem.Contested {
		reason = "FrontendContested"
	}
	p.options.Events.OnService(problem.Service, reason, problem.Field+": "+problem.Reason)
}

// next returns the update to program: the change, or the full content if p.full is or
// becomes true.
func (p *Proxy) next() *desired.Update {
	if !p.Updated().IsZero() { // else endpoints are not new, but the proxy is
		p.state.Advance(time.Now())
	}
	if !p.full {
		c := p.state.Change()
		if !c.Rebuild {
			return c
		}
		p.full = true
	}
	return p.state.Full()
}

func (p *Proxy) program(ctx context.Context) error {
	if p.full && limitsGarbage {
		defer debug.SetGCPercent(debug.SetGCPercent(fullGarbage))
	}
	c := p.next()
	p.report(c.Problems)
	p.metrics.Services.Set(float64(p.state.Services()))
	if contested, differ := p.state.Contested(); differ {
		p.metrics.SetContested(contested)
	}
	p.followUp.expect(c)
	if p.departed != nil {
		p.followUp.stale = append(p.followUp.stale, p.departed.drain(p.log)...)
	}
	if p.full && !p.lookedBack {
		stale, err := p.formerFlows(ctx)
		p.lookedBack = err == nil
		if p.followUp.stale = append(p.followUp.stale, stale...); err != nil {
			p.log.Error(err, "Flows to Services that were deleted may go on")
		}
	}
	apply := p.full || !c.Empty() || len(p.rest) > 0
	if apply {
		if err := p.apply(ctx, &c.Change); err != nil {
			return err
		}
	} else {
		p.pace.held = time.Time{}
	}
	if len(p.triggers.waiting) > 0 {
		if lag := p.triggers.done(time.Now(), p.metrics, p.state.Postpones); apply {
			p.programmed[len(p.programmed)-1].Lag = lag
		}
	}
	p.follow(ctx, c)
	return nil
}

func (p *Proxy) apply(ctx context.Context, c *desired.Change) error {
	kind, apply, about := metrics.Full, p.backend.Reconcile, desired.Families{true, true}
	if !p.full {
		kind, apply, about = metrics.Change, p.backend.Apply, families(c)
	}
	p.verifying.touched.note(c, p.full)
	start := time.Now()
	stats, err := apply(ctx, c)
	took := time.Since(start)
	if err != nil {
		if !p.full {
			p.suspects = c.Services()
		}
		p.metrics.Refused(p.full, about, took)
		return err
	}
	if p.rest = stats.Rest; len(p.rest) == 0 {
		clear(p.behind)
	}
	p.report(stats.Refused)
	p.shrink(c, start)
	p.metrics.ReaderWait.Add(p.pace.committed(*p.lateness.since.Load(), time.Now()).Seconds())
	p.metrics.Programmed(p.full, about, took)
	if len(p.programmed) >= 2*remembered {
		p.programmed = append([]Programming(nil), p.programmed[remembered:]...)
	}
	p.programmed = append(p.programmed, Programming{At: start, Kind: kind, Took: took, Frontends: len(c.Frontends), Pools: len(c.Pools), Elements: stats.Elements})
	p.metrics.Elements.Add(float64(stats.Elements))
	level := 2
	if p.full {
		level = 0
		debug.FreeOSMemory() // a full content takes much more memory than a change
	}
	p.log.V(level).Info("Programmed the kernel", "kind", kind, "frontends", len(c.Frontends), "pools", len(c.Pools), "elements", stats.Elements, "took", took.Round(time.Microsecond))
	return nil
}

// quietAfterRepair is the time without damage after which the next repair is immediate.
const quietAfterRepair = 10 * time.Second

// check detects damage and schedules its repair.
func (p *Proxy) check(ctx context.Context) {
	if p.told = nil; p.full {
		return // a full sync is due anyway
	}
	if !p.leftOut.IsZero() && time.Since(p.leftOut) >= leaveOutFor {
		p.leftOut = time.Time{}
		if p.state.TakeBack() {
			p.queued()
		}
	}
	switch err := p.backend.Check(ctx); {
	case errors.Is(err, dataplane.ErrDamaged):
		p.damaged(err)
	case errors.Is(err, dataplane.ErrDue):
		p.queued()
		p.full = true
	case ctx.Err() == nil:
		p.checkFailed.Log(p.log, err, "Could not check the programmed content")
		w, tells := p.backend.(interface {
			Watch(context.Context) <-chan struct{}
		}) // see nftables.Dataplane
		if others := p.pending || p.state.Warming() || !p.leftOut.IsZero(); tells && err == nil && !others && p.followersRest() {
			p.told = w.Watch(ctx)
		}
	}
}

// damaged schedules a repair: at once, or with a backoff if damage recurs.
func (p *Proxy) damaged(err error) {
	p.log.Error(err, "Programming everything again")
	p.metrics.Repairs.Inc()
	p.warn("Damaged", err)
	p.lookedBack = false // rules of former Services may be back
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

// lateAfter is the default of Options.LateAfter. It is kube-proxy's: twice its default sync
// period.
const lateAfter = time.Minute

// lateness records since when changes have been waiting. Its zero value has no waiting
// changes.
type lateness struct {
	since   atomic.Pointer[time.Time]
	updated atomic.Pointer[time.Time] // when no change was waiting last
}

// waiting records a waiting change, unless an earlier one is waiting.
func (l *lateness) waiting() {
	now := time.Now()
	l.since.CompareAndSwap(nil, &now)
}

// Healthy reports whether no change has been waiting for Options.LateAfter or longer. It is
// safe for concurrent use.
func (p *Proxy) Healthy() bool {
	since := p.lateness.since.Load()
	return since == nil || time.Since(*since) < p.options.LateAfter
}

// Updated returns when the kernel last had all changes, but parts of large ones that were left, or zero before the first
// sync. It is safe for concurrent use.
func (p *Proxy) Updated() time.Time {
	if at := p.lateness.updated.Load(); at != nil {
		return *at
	}
	return time.Time{}
}

// garbage is the target percentage of the garbage collector. Half of Go's default reduces
// the memory of a cold start by a tenth, and adds some percent to its time. While a full content is programmed, which
// needs the most memory, allocates little and ends soon, it is fullGarbage.
const garbage, fullGarbage = 50, 20

var limitsGarbage bool

// LimitGarbage sets the target percentage of the garbage collector, unless the environment
// variable GOGC does.
func LimitGarbage() {
	if limitsGarbage = os.Getenv("GOGC") == ""; limitsGarbage {
		debug.SetGCPercent(garbage)
	}
}
