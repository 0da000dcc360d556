// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"maps"
	"net/netip"
	"slices"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"k8s.io/apimachinery/pkg/types"
)

// HealthChecks answers load balancers, as implemented by healthcheck.Server.
type HealthChecks interface {
	Set([]desired.HealthCheck) // replaces the answers of these Services, with at most one check for each
	SetAddresses([]netip.Addr) // on which to answer; an unspecified one stands for all of its family
}

// Relays serves NodePorts on loopback addresses, as implemented by loopback.Server.
type Relays interface{ Set([]desired.Relay) }

// StaleFlows deletes flows from conntrack soon, in order, without blocking, as implemented by conntrack.Cleaner.
type StaleFlows interface{ Enqueue([]desired.StaleFlows) }

// followUp is the work to do when the changes so far are in effect. The state reports each
// item only once, so items are kept here while programming fails.
type followUp struct {
	checks map[types.NamespacedName]desired.HealthCheck
	relays map[desired.FrontendKey]desired.Relay
	stale  []desired.StaleFlows
}

// expect adds the work that follows a change, before it is programmed.
func (f *followUp) expect(c *desired.Update) {
	for _, h := range c.Health {
		if f.checks == nil {
			f.checks = map[types.NamespacedName]desired.HealthCheck{}
		}
		f.checks[h.Service] = h
	}
	for _, r := range c.Relays {
		if f.relays == nil {
			f.relays = map[desired.FrontendKey]desired.Relay{}
		}
		f.relays[r.FrontendKey] = r
	}
	f.stale = append(f.stale, c.Flows...)
}

// formerFlows returns the flows to frontends that the kernel has from an earlier run, and that no
// Service has any more. It reads the kernel's content only if there are flows that can be such.
func (p *Proxy) formerFlows(ctx context.Context) (stale []desired.StaleFlows, err error) {
	if p.options.FlowDestinations == nil || p.options.OpenReader == nil {
		return nil, nil
	}
	all, err := p.options.FlowDestinations(ctx)
	all = slices.DeleteFunc(all, p.state.Serves)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	r, err := p.options.OpenReader(ctx)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	former, err := r.Read(ctx)
	if err != nil {
		return nil, err
	}
	for _, to := range all {
		_, was := former.Frontends[to]
		if _, nodePort := former.Frontends[to.NodePort()]; was || nodePort && former.Sets[desired.NodeAddresses][desired.Address(to.Addr())] {
			stale = append(stale, desired.StaleFlows{Protocol: to.Protocol, Frontends: []desired.FrontendKey{to}, Backends: []desired.Backend{desired.NewBackend(to.AddrPort)}, Only: true})
		}
	}
	return stale, nil
}

// follow does the work that follows a change, when it is in effect.
func (p *Proxy) follow(ctx context.Context, c *desired.Update) {
	due := p.followUp
	p.followUp = followUp{}
	due.stale = append(due.stale, c.AllFlows...)
	p.updateNodePorts()
	if len(due.checks) > 0 && p.options.HealthChecks != nil {
		p.options.HealthChecks.Set(slices.Collect(maps.Values(due.checks)))
	}
	if len(due.relays) > 0 && p.options.Relays != nil {
		p.options.Relays.Set(slices.Collect(maps.Values(due.relays)))
	}
	if ender, ok := p.backend.(dataplane.FlowEnder); ok && len(due.stale) > 0 {
		if err := ender.EndFlows(ctx, due.stale); err != nil {
			p.log.Error(err, "Could not end flows to endpoints that no longer serve")
		}
	}
	if len(due.stale) > 0 && p.options.StaleFlows != nil {
		p.options.StaleFlows.Enqueue(due.stale)
	}
	p.connectSockets(ctx, &c.Change)
	p.accelerate(ctx, &c.Change)
}

// updateNodePorts passes on the addresses that serve NodePorts if they have changed.
func (p *Proxy) updateNodePorts() {
	addrs := p.state.NodePortAddresses()
	if p.nodePorts != nil && slices.Equal(addrs, p.nodePorts) {
		return
	}
	p.nodePorts = append([]netip.Addr{}, addrs...)
	if len(addrs) == 0 {
		p.log.Info("NodePorts answer nowhere, as no address of this node is selected")
	} else {
		p.log.V(2).Info("NodePorts answer on", "addresses", addrs)
	}
	if p.options.HealthChecks != nil {
		p.options.HealthChecks.SetAddresses(addrs)
	}
}
