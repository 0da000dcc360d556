// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"fmt"
	"maps"
	"sync/atomic"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/source"
	"k8s.io/apimachinery/pkg/api/meta"
)

// policyPause is the least time between two calls of Options.PolicyChanged.
const policyPause = 15 * time.Second

// policies records changes of NetworkPolicies, and of the labels by which they select.
type policies struct {
	changed atomic.Bool // since the last call
	called  time.Time
	labels  map[string]map[string]string // of pods and Namespaces
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
	if c.labels == nil {
		c.labels = map[string]map[string]string{}
	}
	c.labels[key] = o.GetLabels()
	return known && !maps.Equal(was, o.GetLabels())
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
