// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"k8s.io/apimachinery/pkg/util/wait"
)

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
