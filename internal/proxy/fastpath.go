// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
)

// FastPath receives the same changes as the dataplane, as implemented by
// fastpath.Controller. Services do not depend on it: its failures are retried, and do not
// delay the dataplane.
type FastPath interface {
	Reconcile(ctx context.Context, full *desired.Change) (dataplane.Stats, error)
	Apply(ctx context.Context, change *desired.Change) (dataplane.Stats, error)
	Check(ctx context.Context) error
}

// fastPathState is the loop's state of the fast path.
type fastPathState struct {
	ready    bool // it has all changes so far
	notUntil time.Time
	backoff  wait.Backoff
}

// accelerate programs the fast path with a change that the dataplane has programmed. The
// state must not have changed since.
func (p *Proxy) accelerate(ctx context.Context, c *desired.Change) {
	fast := p.options.FastPath
	if fast == nil {
		return
	}
	if p.fastPath.ready && !p.full {
		if len(c.Frontends) == 0 {
			return
		}
		_, err := fast.Apply(ctx, c)
		if err == nil {
			return
		}
		klog.ErrorS(err, "The fast path did not take a change, trying everything again")
		p.fastPath.ready = false
	}
	if time.Now().Before(p.fastPath.notUntil) {
		return
	}
	if !p.full {
		c = &p.state.Full().Change
	}
	if _, err := fast.Reconcile(ctx, c); err != nil {
		if p.fastPath.backoff.Duration == 0 {
			p.fastPath.backoff = newBackoff()
		}
		delay := p.fastPath.backoff.Step()
		klog.ErrorS(err, "Could not program the fast path, will try again", "after", delay.Round(time.Millisecond))
		p.warn("FailedToAccelerate", err)
		p.fastPath = fastPathState{notUntil: time.Now().Add(delay), backoff: p.fastPath.backoff}
		return
	}
	p.fastPath = fastPathState{ready: true}
}

// checkFastPath checks the fast path, and programs it again if it is damaged or the last
// attempt failed. It does nothing while a change is pending.
func (p *Proxy) checkFastPath(ctx context.Context) {
	if p.options.FastPath == nil || p.full || p.pending {
		return
	}
	if p.fastPath.ready {
		switch err := p.options.FastPath.Check(ctx); {
		case errors.Is(err, dataplane.ErrDamaged):
			klog.ErrorS(err, "Programming the fast path again")
			p.fastPath.ready = false
		case err != nil:
			klog.ErrorS(err, "Could not check the fast path")
		}
	}
	if !p.fastPath.ready {
		p.accelerate(ctx, nil)
	}
}
