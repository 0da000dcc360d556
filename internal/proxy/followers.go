// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/source"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/wait"
)

// fastPathState is about Options.FastPath. Its calls run in the background, and its failures are retried.
type fastPathState struct {
	done    chan func() // delivers how to handle the result of the running call; nil if none runs
	ready   bool        // it has all changes so far except waiting, or receives them in the running call
	waiting map[desired.FrontendKey]desired.FrontendChange
	members map[member]bool // whether each was added or removed
	retry
}

// fastPathSets are the sets that the fast path needs.
var fastPathSets = []desired.Set{desired.SlowPathIPs, desired.NodeAddresses}

type member struct {
	set desired.Set
	desired.Member
}

// add merges changes into those that wait.
func (f *fastPathState) add(change *desired.Change) {
	if f.waiting == nil {
		f.waiting, f.members = map[desired.FrontendKey]desired.FrontendChange{}, map[member]bool{}
	}
	for _, set := range fastPathSets {
		for m, added := range change.Sets[set].All() {
			key := member{set, m}
			if _, waits := f.members[key]; waits {
				delete(f.members, key) // two changes cancel each other
			} else {
				f.members[key] = added
			}
		}
	}
	for _, c := range change.Frontends {
		key := c.Key()
		if earlier, exists := f.waiting[key]; exists {
			c.Old = earlier.Old
		}
		if f.waiting[key] = c; c.Old == nil && c.New == nil {
			delete(f.waiting, key)
		}
	}
}

// drain returns the changes that wait, and forgets them.
func (f *fastPathState) drain() *desired.Change {
	change := &desired.Change{Frontends: slices.Collect(maps.Values(f.waiting))}
	for m, added := range f.members {
		to := &change.Sets[m.set].Removed
		if added {
			to = &change.Sets[m.set].Added
		}
		*to = append(*to, m.Member)
	}
	f.waiting, f.members = nil, nil
	return change
}

// failed makes the next call a Reconcile.
func (f *fastPathState) failed() { f.ready, f.waiting, f.members = false, nil, nil }

// accelerate passes a change that the dataplane has programmed to the fast path.
func (p *Proxy) accelerate(ctx context.Context, c *desired.Change) {
	if p.options.FastPath == nil {
		return
	}
	if p.full {
		p.fastPath.failed()
		p.programFastPath(ctx, c)
		return
	}
	if p.fastPath.ready {
		p.fastPath.add(c)
	}
	p.programFastPath(ctx, nil)
}

// programFastPath starts the call that the fast path needs, unless one is running. full is
// the content that the dataplane has, or nil if it is to be asked of the state.
func (p *Proxy) programFastPath(ctx context.Context, full *desired.Change) {
	f, fast := &p.fastPath, p.options.FastPath
	switch {
	case f.done != nil, f.ready && len(f.waiting)+len(f.members) == 0, !f.ready && !f.due():
	case f.ready:
		change := f.drain()
		p.callFastPath(ctx, func() error { _, err := fast.Apply(ctx, change); return err }, func(err error) {
			if err != nil {
				p.log.Error(err, "The fast path did not take a change, trying everything again")
				f.failed()
			}
		})
	default:
		if full == nil {
			full = p.state.Reported()
		}
		f.ready = true
		p.callFastPath(ctx, func() error { _, err := fast.Reconcile(ctx, full); return err }, p.fastPathReconciled)
	}
}

// callFastPath starts call in the background. The loop passes its error to handle.
func (p *Proxy) callFastPath(ctx context.Context, call func() error, handle func(error)) {
	done := make(chan func(), 1)
	p.fastPath.done = done
	p.background.Go(func() {
		err := call()
		done <- func() {
			p.fastPath.done = nil
			if ctx.Err() != nil {
				return
			}
			handle(err)
			if !p.full {
				p.programFastPath(ctx, nil)
			}
		}
	})
}

func (p *Proxy) fastPathReconciled(err error) {
	f := &p.fastPath
	if err == nil {
		f.retry = retry{}
		return
	}
	p.log.Error(err, "Could not program the fast path, will try again", "after", f.again())
	p.warn("FailedToAccelerate", err)
	f.failed()
}

// checkFastPath checks the fast path, and programs it again if it is damaged or the last
// attempt failed. It does nothing until the kernel has the last reported content.
func (p *Proxy) checkFastPath(ctx context.Context) {
	fast := p.options.FastPath
	if fast == nil || p.full || p.fastPath.done != nil {
		return
	}
	if !p.fastPath.ready {
		p.programFastPath(ctx, nil)
		return
	}
	p.callFastPath(ctx, func() error { return fast.Check(ctx) }, func(err error) {
		if errors.Is(err, dataplane.ErrDamaged) {
			p.log.Error(err, "Programming the fast path again")
			p.fastPath.failed()
		} else {
			p.checkFastPathFailed.Log(p.log, err, "Could not check the fast path")
		}
	})
}

// followersRest reports whether they need nothing until a change, or until another program commits to nf_tables.
func (p *Proxy) followersRest() bool {
	o, f, c := &p.options, &p.fastPath, &p.policies
	r, rests := o.FastPath.(interface{ Rests() bool })                 // see fastpath.Controller
	policies := c.changed.Load() || time.Since(c.called) < policyPause // the last call may fail yet
	return o.Sockets == nil && !policies && (o.FastPath == nil || rests && f.ready && f.done == nil && r.Rests())
}

// Follower receives changes that the dataplane has programmed. Services do not depend on it: without it,
// or if it fails, the dataplane serves all connections.
type Follower interface {
	Reconcile(ctx context.Context, full *desired.Change) (dataplane.Stats, error)
	Apply(ctx context.Context, change *desired.Change) (dataplane.Stats, error)
	Check(ctx context.Context) error
}

type socketState struct {
	ready bool // it has all changes so far
	retry
}

// retry says when to try again after failures. The zero value is: at once.
type retry struct {
	notUntil time.Time
	backoff  wait.Backoff
}

func (r *retry) due() bool { return !time.Now().Before(r.notUntil) }

// again counts a failure, and returns the delay after it.
func (r *retry) again() time.Duration {
	if r.backoff.Duration == 0 {
		r.backoff = newBackoff()
	}
	delay := r.backoff.Step()
	r.notUntil = time.Now().Add(delay)
	return delay.Round(time.Millisecond)
}

// connectSockets passes a change that the dataplane has programmed to the sockets.
func (p *Proxy) connectSockets(ctx context.Context, c *desired.Change) {
	switch {
	case p.options.Sockets == nil:
	case p.full:
		p.reconcileSockets(ctx, c)
	case p.sockets.ready:
		if _, err := p.options.Sockets.Apply(ctx, c); err != nil {
			p.log.Error(err, "Sockets did not take a change, trying everything again")
			p.reconcileSockets(ctx, p.state.Reported())
		}
	}
}

func (p *Proxy) reconcileSockets(ctx context.Context, full *desired.Change) {
	s := &p.sockets
	_, err := p.options.Sockets.Reconcile(ctx, full)
	if s.ready = err == nil; s.ready {
		s.retry = retry{}
		return
	}
	p.log.Error(err, "Sockets could not be programmed, so connections are translated; will try again", "after", s.again())
	p.warn("FailedToConnectSockets", err)
}

// checkSockets checks whether the programs are attached, and programs everything again if they are
// not, or the last attempt failed.
func (p *Proxy) checkSockets(ctx context.Context) {
	if p.options.Sockets == nil || p.full {
		return
	}
	if p.sockets.ready {
		err := p.options.Sockets.Check(ctx)
		if !errors.Is(err, dataplane.ErrDamaged) {
			return
		}
		p.log.Error(err, "Programming the sockets again")
		p.sockets.ready = false
	}
	if p.sockets.due() {
		p.reconcileSockets(ctx, p.state.Reported())
	}
}

// policyPause is the least time between two calls of Options.PolicyChanged.
const policyPause = 15 * time.Second

// policies records changes of NetworkPolicies, and of the labels by which they select.
type policies struct {
	changed atomic.Bool // since the last call
	called  time.Time
	labels  map[string]uint64 // hashes of those of pods and Namespaces: a pod may have a megabyte
	seed    maphash.Seed
}

// noteLabels reports whether an event changes the labels of a pod or a Namespace that was known.
func (c *policies) noteLabels(e source.Event) bool {
	o, _ := meta.Accessor(e.Object) // they have metadata
	key := fmt.Sprintf("%T %s/%s", o, o.GetNamespace(), o.GetName())
	was, known := c.labels[key]
	if e.Type == source.Delete {
		delete(c.labels, key)
		return false
	}
	c.labels[key] = maphash.String(c.seed, fmt.Sprint(o.GetLabels())) // in order
	return known && was != c.labels[key]
}

// policyChanged has checkPolicies call Options.PolicyChanged, also at rest.
func (p *Proxy) policyChanged() {
	if !p.synced || p.options.PolicyChanged == nil {
		return
	}
	if p.policies.changed.Store(true); p.told != nil {
		now := make(chan struct{})
		close(now)
		p.told = now
	}
}

// checkPolicies calls Options.PolicyChanged if it is due.
func (p *Proxy) checkPolicies(ctx context.Context) {
	c := &p.policies
	if p.options.PolicyChanged == nil || time.Since(c.called) < policyPause || !c.changed.Swap(false) {
		return
	}
	c.called = time.Now()
	p.background.Go(func() {
		if err := p.options.PolicyChanged(ctx); err != nil && ctx.Err() == nil {
			p.log.Error(err, "Connections stay on the fast path although a NetworkPolicy has changed, will try again")
			c.changed.Store(true)
		}
	})
}
