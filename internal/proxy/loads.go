// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"fmt"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/logonce"
)

// Loads counts the connections of backends, as implemented by load.Counter, for
// desired.Config.Loads.
type Loads interface {
	// Update counts until now, or without loads only watches handshakes. A function says which.
	Update(ctx context.Context, loads bool, watch func(desired.FrontendKey, desired.Backend) (namespace string)) error

	// Handshakes returns the backends that have answered clients since the last call, and those that are failing.
	Handshakes() []desired.Handshake

	// Stop frees the resources until the next Update.
	Stop() error
}

// countPeriod is the time between two updates of the loads. Shorter connections are counted, but
// their duration is known on average only. watchPeriod is that of handshakes alone, as each look costs processor time.
const countPeriod, watchPeriod = 50 * time.Millisecond, desired.LoadPeriod / 2

// loads are updated while a Service needs them.
type loads struct {
	ticker   *time.Ticker // nil while no Service does
	period   time.Duration
	due      <-chan time.Time
	followed time.Time // when the state last followed them
	errs     logonce.Errors
}

// followLoads begins or ends to update the loads, as the state needs them.
func (p *Proxy) followLoads() {
	l, needed := &p.loads, p.options.Loads != nil && (p.state.FollowsLoads() || p.state.Detecting())
	period := watchPeriod
	if p.state.FollowsLoads() {
		period = countPeriod
	}
	switch {
	case needed && l.ticker == nil:
		l.ticker, l.period = time.NewTicker(period), period
		l.due = l.ticker.C
	case needed && l.period != period:
		l.ticker.Reset(period)
		l.period = period
	case !needed && l.ticker != nil:
		p.stopLoads()
	}
}

func (p *Proxy) stopLoads() {
	l := &p.loads
	if l.ticker == nil {
		return
	}
	l.ticker.Stop()
	p.state.LoadsKnown(nil)
	p.forgetOutliers("no Service has outlier detection")
	*l = loads{}
	if err := p.options.Loads.Stop(); err != nil {
		p.log.Error(err, "Could not stop counting connections")
	}
}

// updateLoads updates the loads. Once in a desired.LoadPeriod, it has the next change follow them.
func (p *Proxy) updateLoads(ctx context.Context) {
	l := &p.loads
	err := p.options.Loads.Update(ctx, p.state.FollowsLoads(), func(to desired.FrontendKey, b desired.Backend) string {
		_, service := p.state.DetectionOf(to, b)
		return service.Namespace
	})
	if ctx.Err() == nil {
		l.errs.Log(p.log, err, "Could not count connections, so endpoints are chosen at random in place of lc, and outlier detection does nothing")
		if p.state.LoadsKnown(err) {
			p.pending = true
			if err != nil {
				p.warn("FeatureMissing", fmt.Errorf("connections cannot be counted, so endpoints are chosen at random in place of lc, and outlier detection does nothing: %w", err))
			}
		}
	}
	if err != nil {
		p.forgetOutliers("connections cannot be counted")
	}
	const period = desired.LoadPeriod - countPeriod/2 // ticks are not exact
	if err != nil || time.Since(l.followed) < period {
		return
	}
	l.followed = time.Now()
	p.watchHandshakes(ctx)
	p.pending = p.state.LoadsChanged() || p.pending
}
