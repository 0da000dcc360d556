// SPDX-License-Identifier: Apache-2.0

// Package proxy is the loop that keeps the kernel in line with the objects:
// events of a source go into the desired state, and what changed there goes to
// a backend.
package proxy

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/slipstream-proxy/slipstream/backend"
	"github.com/slipstream-proxy/slipstream/desired"
	"github.com/slipstream-proxy/slipstream/metrics"
	"github.com/slipstream-proxy/slipstream/source"
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
}

// Proxy is the loop. It is used once.
type Proxy struct {
	source  source.Source
	state   *desired.State
	backend backend.Backend
	metrics *metrics.Metrics
	options Options

	synced   bool         // the source has delivered what there was
	pending  bool         // the state has changes that the kernel has not
	full     bool         // only a full content will do
	notUntil time.Time    // the next sync is held off until then
	backoff  wait.Backoff // after failures
	repairs  wait.Backoff // of repairs that follow each other closely
	repaired time.Time    // when the last one was asked for
}

// New makes a loop. State and backend are the loop's from now on.
func New(s source.Source, st *desired.State, b backend.Backend, m *metrics.Metrics, o Options) *Proxy {
	return &Proxy{source: s, state: st, backend: b, metrics: m, options: o, full: true, backoff: newBackoff()}
}

// newBackoff is how long to wait after failures: from 100 ms to 30 s.
func newBackoff() wait.Backoff {
	return wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Jitter: 0.1, Steps: 10, Cap: 30 * time.Second}
}

// Run works until ctx ends, which is no error, or until the source fails. The
// kernel keeps what has been programmed.
func (p *Proxy) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	events := make(chan []source.Event, waitingBatches)
	failed := make(chan error, 1)
	go func() {
		failed <- p.source.Run(ctx, func(batch []source.Event) {
			select {
			case events <- batch:
			case <-ctx.Done():
			}
		})
		close(failed)
	}()
	defer func() {
		cancel()
		for range failed { // until the source has ended too
		}
	}()

	check := time.NewTicker(p.options.CheckPeriod)
	defer check.Stop()
	hold := time.NewTimer(0)
	defer hold.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			if err == nil && ctx.Err() == nil {
				err = errors.New("it ended")
			}
			if err != nil {
				return fmt.Errorf("source of objects: %w", err)
			}
			return nil
		case batch := <-events:
			p.take(batch)
			p.takeWaiting(events)
		case <-hold.C:
		case <-check.C:
			p.check()
		}
		if !p.pending || !p.synced {
			continue
		}
		if wait := time.Until(p.notUntil); wait > 0 {
			hold.Reset(wait)
			continue
		}
		p.sync()
		if p.pending { // it failed
			hold.Reset(time.Until(p.notUntil))
		}
	}
}

// waitingBatches is how many batches of events can wait for a sync to end before
// the source has to.
const waitingBatches = 256

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
		Tell(p.state, e)
	}
	p.pending = true
}

// quietAfterRepair is how long nothing must have been damaged for a repair to be
// made at once.
const quietAfterRepair = 10 * time.Second

// check finds damage and asks for its repair.
func (p *Proxy) check() {
	if p.full {
		return // a full sync is due anyway
	}
	switch err := p.backend.Check(); {
	case errors.Is(err, backend.ErrDamaged):
		klog.ErrorS(err, "Programming everything again")
		p.metrics.Repairs.Inc()
		p.pending, p.full = true, true
		p.notUntil = time.Time{}
		// At once, unless somebody does it again and again.
		if time.Since(p.repaired) < quietAfterRepair {
			p.notUntil = time.Now().Add(p.repairs.Step())
		} else {
			p.repairs = newBackoff()
		}
		p.repaired = time.Now()
	case err != nil:
		klog.ErrorS(err, "Could not check what is programmed")
	}
}

// sync brings the kernel in line. What the kernel refuses as a change is tried
// as the full content at once; if that fails too, again after a while, with
// whatever has changed until then.
func (p *Proxy) sync() {
	first := p.full
	err := p.program()
	if err != nil && !first {
		klog.ErrorS(err, "The kernel refused a change, programming everything again")
		p.full = true
		err = p.program()
	}
	if err != nil {
		delay := p.backoff.Step()
		klog.ErrorS(err, "Could not program the kernel, will try again", "after", delay.Round(time.Millisecond))
		p.notUntil = time.Now().Add(delay)
		return
	}
	p.pending, p.full = false, false
	p.backoff = newBackoff()
	p.notUntil = time.Now().Add(p.options.MinSyncPeriod)
}

// program is one try: of the change, or of everything when p.full.
func (p *Proxy) program() error {
	kind, apply, change := metrics.Change, p.backend.Apply, p.state.Change
	if p.full {
		kind, apply, change = metrics.Full, p.backend.Reconcile, p.state.Full
	}
	c := change()
	for _, problem := range c.Problems {
		klog.ErrorS(nil, "Part of an object was not acted on", "object", problem.Object, "field", problem.Field, "reason", problem.Reason)
		p.metrics.ObjectProblems.Inc()
	}
	p.metrics.Services.Set(float64(p.state.Services()))
	if !p.full && c.Empty() {
		return nil
	}
	start := time.Now()
	stats, err := apply(c)
	if err != nil {
		p.metrics.SyncFailures.WithLabelValues(kind).Inc()
		return err
	}
	took := time.Since(start)
	p.metrics.SyncDuration.WithLabelValues(kind).Observe(took.Seconds())
	p.metrics.Elements.Add(float64(stats.Elements))
	level := klog.Level(2)
	if p.full {
		level = 0
		debug.FreeOSMemory() // a full content takes many times what a change does
	}
	klog.V(level).InfoS("Programmed the kernel", "kind", kind, "frontends", len(c.Frontends), "pools", len(c.Pools), "elements", stats.Elements, "took", took.Round(time.Microsecond))
	return nil
}
