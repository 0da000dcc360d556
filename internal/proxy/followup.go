// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"maps"
	"net/netip"
	"slices"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// HealthChecks answers load balancers, as a healthcheck.Server does.
type HealthChecks interface {
	// Set takes what load balancers are to learn from now on, at most one
	// check for each Service.
	Set([]desired.HealthCheck)

	// SetAddresses says on which addresses to answer. An unspecified one
	// stands for all of its family's.
	SetAddresses([]netip.Addr)
}

// StaleFlows has the kernel forget flows, as a conntrack.Cleaner does.
type StaleFlows interface {
	// Enqueue has flows forgotten soon, in the order in which they come. It
	// does not wait for that.
	Enqueue([]desired.StaleFlows)
}

// followUp is what is to be done once the changes so far are in effect. The state
// tells each of it once, so it is kept here for as long as changes fail.
type followUp struct {
	checks map[types.NamespacedName]desired.HealthCheck
	stale  []desired.StaleFlows
}

// expect takes down what follows a change that is about to be programmed. What
// flows a full content makes stale is told again with the next one.
func (f *followUp) expect(c *desired.Update, full bool) {
	for _, h := range c.Health {
		if f.checks == nil {
			f.checks = map[types.NamespacedName]desired.HealthCheck{}
		}
		f.checks[h.Service] = h
	}
	if !full {
		f.stale = append(f.stale, c.Flows...)
	}
}

// take takes what is due now that a change is in effect.
func (f *followUp) take(c *desired.Update, full bool) (checks []desired.HealthCheck, stale []desired.StaleFlows) {
	checks, stale = slices.Collect(maps.Values(f.checks)), f.stale
	if full {
		stale = append(stale, c.Flows...)
	}
	*f = followUp{}
	return checks, stale
}

// follow does what follows a change that is in effect.
func (p *Proxy) follow(ctx context.Context, c *desired.Update) {
	checks, stale := p.followUp.take(c, p.full)
	p.accelerate(ctx, &c.Change)
	if addrs, differ := p.listens.now(p.state); differ && p.options.HealthChecks != nil {
		p.options.HealthChecks.SetAddresses(addrs)
	}
	if len(checks) > 0 && p.options.HealthChecks != nil {
		p.options.HealthChecks.Set(checks)
	}
	if len(stale) > 0 && p.options.StaleFlows != nil {
		p.options.StaleFlows.Enqueue(stale)
	}
}

// nodePortAddrs are the addresses on which NodePorts answer, and with them
// health checks.
type nodePortAddrs struct {
	unsure bool // something has come that they depend on
	known  bool
	addrs  []netip.Addr
}

// now returns them, and whether they differ from the last time.
func (n *nodePortAddrs) now(s *desired.State) (addrs []netip.Addr, differ bool) {
	if n.known && !n.unsure {
		return n.addrs, false
	}
	addrs = s.NodePortAddresses()
	differ = !n.known || !slices.Equal(addrs, n.addrs)
	n.known, n.unsure, n.addrs = true, false, addrs
	switch {
	case !differ:
	case len(addrs) == 0:
		klog.InfoS("NodePorts answer nowhere, as no address of this node is selected")
	default:
		klog.V(2).InfoS("NodePorts answer on", "addresses", addrs)
	}
	return addrs, differ
}
