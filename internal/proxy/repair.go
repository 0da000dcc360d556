// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"k8s.io/klog/v2"
)

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
