// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"sync/atomic"
	"time"
)

// policyPause is the least time between two calls of Options.PolicyChanged.
const policyPause = 15 * time.Second

// policies records changes of NetworkPolicies.
type policies struct {
	changed atomic.Bool // since the last call
	called  time.Time
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
