// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/logonce"
)

// Loads counts the connections of backends, as implemented by load.Counter, for
// desired.Config.Loads.
type Loads interface {
	// Update counts until now.
	Update(ctx context.Context) error

	// Stop frees the resources until the next Update.
	Stop() error
}

// loadPeriod is the time between two updates of the loads, if changes leave readers enough time
// (see pace).
const loadPeriod = 250 * time.Millisecond

// loads are updated while a Service needs them.
type loads struct {
	ticker *time.Ticker // nil while no Service does
	due    <-chan time.Time
	errs   logonce.Errors
}

// followLoads begins or ends to update the loads, as the state needs them.
func (p *Proxy) followLoads() {
	l, needed := &p.loads, p.options.Loads != nil && p.state.FollowsLoads()
	switch {
	case needed && l.ticker == nil:
		l.ticker = time.NewTicker(loadPeriod)
		l.due = l.ticker.C
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
	*l = loads{}
	if err := p.options.Loads.Stop(); err != nil {
		p.log.Error(err, "Could not stop counting connections")
	}
}

// updateLoads updates the loads and has the next change follow them.
func (p *Proxy) updateLoads(ctx context.Context) {
	if time.Since(p.pace.commit) < p.pace.enough() {
		return
	}
	err := p.options.Loads.Update(ctx)
	if ctx.Err() == nil {
		p.loads.errs.Log(p.log, err, "Could not count connections, so least-connection scheduling uses old numbers")
	}
	if err == nil {
		p.state.LoadsChanged()
		p.pending = true
	}
}
