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

// FastPath learns of frontends what a backend does, as a fastpath.Controller does.
// Services do not depend on it: what fails there is tried again, and nothing waits
// for it.
type FastPath interface {
	Reconcile(ctx context.Context, full *desired.Change) (dataplane.Stats, error)
	Apply(ctx context.Context, change *desired.Change) (dataplane.Stats, error)
	Check(ctx context.Context) error
}

// besides is what is known about the fast path.
type besides struct {
	ready    bool // it has all changes so far
	notUntil time.Time
	backoff  wait.Backoff
}

// accelerate tells the fast path of a change that the kernel has. Nothing else may
// have come into the state since that change was taken from it.
func (p *Proxy) accelerate(ctx context.Context, c *desired.Change) {
	fast := p.options.FastPath
	if fast == nil {
		return
	}
	if p.besides.ready && !p.full {
		if len(c.Frontends) == 0 {
			return
		}
		_, err := fast.Apply(ctx, c)
		if err == nil {
			return
		}
		klog.ErrorS(err, "The fast path did not take a change, trying everything again")
		p.besides.ready = false
	}
	if time.Now().Before(p.besides.notUntil) {
		return
	}
	if !p.full {
		c = p.state.Full()
	}
	if _, err := fast.Reconcile(ctx, c); err != nil {
		p.metrics.FastPathFailures.Inc()
		if p.besides.backoff.Duration == 0 {
			p.besides.backoff = newBackoff()
		}
		delay := p.besides.backoff.Step()
		klog.ErrorS(err, "Could not program the fast path, will try again", "after", delay.Round(time.Millisecond))
		p.warn("FailedToAccelerate", err)
		p.besides = besides{notUntil: time.Now().Add(delay), backoff: p.besides.backoff}
		return
	}
	p.besides = besides{ready: true}
}

// checkFastPath finds damage of the fast path, and repairs that and what failed
// before. It waits for changes that are about to be programmed anyway.
func (p *Proxy) checkFastPath(ctx context.Context) {
	if p.options.FastPath == nil || p.full || p.pending {
		return
	}
	if p.besides.ready {
		switch err := p.options.FastPath.Check(ctx); {
		case errors.Is(err, dataplane.ErrDamaged):
			klog.ErrorS(err, "Programming the fast path again")
			p.besides.ready = false
		case err != nil:
			klog.ErrorS(err, "Could not check the fast path")
		}
	}
	if !p.besides.ready {
		p.accelerate(ctx, nil)
	}
}
