// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/ipvs"
)

// These bound what one Check reads: the pools, and the virtual servers with destinations that
// drain.
const (
	sampleSize = 16
	drainsSize = 256
)

// Check implements dataplane.Dataplane. IPVS has no generation by which a modification by
// another process shows, so each call reads the virtual servers of a few pools, and whether
// their addresses are the node's. It reads the parameters too, and deletes destinations without
// weight whose connections have ended.
func (b *Backend) Check(ctx context.Context) error {
	if err := b.sequence.Check(); err != nil {
		return err
	}
	if err := b.table.Check(ctx); err != nil {
		return err
	}
	if err := b.endDrains(ctx); err != nil {
		return err
	}
	differing, err := b.differingParameters()
	if err != nil {
		return err
	}
	if len(differing) > 0 {
		return fmt.Errorf("%w: %s", dataplane.ErrDamaged, differing[0])
	}
	for n := min(sampleSize, len(b.servers.pools)); n > 0; n-- {
		b.nextSample = (b.nextSample + 1) % len(b.servers.pools)
		pool := b.servers.pools[b.nextSample]
		if pool == nil || len(pool.Slots) == 0 {
			continue
		}
		for _, f := range pool.Frontends {
			if err := b.checkServer(ctx, f, pool); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkServer compares the destinations of a virtual server with its pool, and looks for its
// address.
func (b *Backend) checkServer(ctx context.Context, f *desired.Frontend, pool *pool) error {
	all, err := b.conn.Destinations(ctx, keyOf(f.FrontendKey))
	if err != nil {
		return err
	}
	missing := make(map[netip.AddrPort]uint32, len(pool.Slots))
	for _, b := range pool.Slots {
		missing[addrPort(b)] = pool.weight(b)
	}
	surplus, reweighed := 0, 0
	for _, d := range all {
		switch n, wanted := missing[d.AddrPort]; {
		case !wanted && d.Weight > 0:
			surplus++
		case wanted && d.Weight != n:
			reweighed++
		}
		delete(missing, d.AddrPort)
	}
	if surplus+reweighed+len(missing) > 0 {
		return fmt.Errorf("%w: Service %s: virtual server %s lacks %d of %d destinations, has %d others, and %d with another weight", dataplane.ErrDamaged, f.Service, f.FrontendKey, len(missing), len(pool.Slots), surplus, reweighed)
	}
	if a := f.Addr(); b.translation.onDummy(a) && !b.dummy.isLocal(a) {
		// The kernel makes the route of a new IPv6 address in the background.
		if has, err := b.dummy.addresses(); err != nil || has[a] {
			return err
		}
		return fmt.Errorf("%w: Service %s: interface %s does not have address %s", dataplane.ErrDamaged, f.Service, Interface, a)
	}
	return nil
}

// endDrains deletes the destinations without weight whose connections or time have ended.
func (b *Backend) endDrains(ctx context.Context) error {
	now := time.Now()
	ended := map[ipvs.Key][]netip.AddrPort{}
	looked := 0
	for key, drains := range b.drain { // in another order each time
		if looked++; looked > drainsSize {
			break
		}
		all, err := b.conn.Destinations(ctx, key)
		if err != nil {
			return err
		}
		for _, d := range all {
			until, draining := drains[d.AddrPort]
			if draining && (d.Connections() == 0 || now.After(until)) {
				ended[key] = append(ended[key], d.AddrPort)
			}
		}
		for to := range drains { // deleted by another process
			if !slices.ContainsFunc(all, func(d ipvs.Destination) bool { return d.AddrPort == to }) {
				delete(drains, to)
			}
		}
		if len(drains) == 0 {
			delete(b.drain, key)
		}
	}
	return b.end(ctx, ended)
}

// EndFlows implements dataplane.FlowEnder. It deletes destinations without weight. If that fails,
// Check does it.
func (b *Backend) EndFlows(ctx context.Context, flows []desired.StaleFlows) error {
	ended := map[ipvs.Key][]netip.AddrPort{}
	end := func(key ipvs.Key, f *desired.StaleFlows) {
		for to := range b.drain[key] {
			if slices.Contains(f.Backends, desired.NewBackend(to)) != f.Only {
				ended[key] = append(ended[key], to)
				b.drain[key][to] = time.Time{}
			}
		}
	}
	for i := range flows {
		f := &flows[i]
		for _, frontend := range f.Frontends {
			end(keyOf(frontend), f)
		}
		if f.Protocol != desired.TCP {
			continue
		}
		for key := range b.drain { // of any frontend
			if key.Protocol == uint8(desired.TCP) {
				end(key, f)
			}
		}
	}
	return b.end(ctx, ended)
}

// end deletes destinations without weight.
func (b *Backend) end(ctx context.Context, ended map[ipvs.Key][]netip.AddrPort) error {
	var steps []step
	for key, all := range ended {
		for _, to := range all {
			steps = append(steps, step{request: ipvs.DeleteDestination(key, to), key: key, tolerate: noDestination})
		}
	}
	if err := b.execute(ctx, steps); err != nil {
		return err
	}
	for key, all := range ended {
		for _, to := range all {
			delete(b.drain[key], to)
		}
		if len(b.drain[key]) == 0 {
			delete(b.drain, key)
		}
	}
	return nil
}

// Read implements dataplane.Reader.
func (b *Backend) Read(ctx context.Context) (*dataplane.Content, error) {
	c, err := b.table.Read(ctx)
	if err != nil {
		return nil, err
	}
	if err := b.dummy.find(); err != nil {
		return nil, err
	}
	addresses, err := b.dummy.addresses()
	if err != nil {
		return nil, err
	}
	all, err := b.byAddress(ctx)
	if err != nil {
		return nil, err
	}
	external, internal := map[netip.Addr]bool{}, map[netip.Addr]bool{}
	for key, t := range c.Frontends {
		if t.External {
			external[key.Addr()] = true
		} else {
			internal[key.Addr()] = true
		}
	}
	for _, s := range all {
		key := desired.FrontendKey{AddrPort: netip.AddrPortFrom(s.Addr, s.Port), Protocol: desired.Protocol(s.Protocol)}
		t, exists := c.Frontends[key]
		if !exists {
			if b.mayDelete(s.Key) {
				c.Faults = append(c.Faults, fmt.Sprintf("virtual server %s of no frontend", key))
			}
			continue
		}
		served, err := b.readServer(ctx, s)
		if err != nil {
			return nil, err
		}
		choice := &t.Choice
		if t.FromOutside != nil {
			choice = t.FromOutside
		}
		switch {
		case slices.Equal(choice.Backends, []desired.Backend{dataplane.Elsewhere}):
			*choice = served
		case len(served.Backends) > 0 && len(choice.Backends) == 0:
			c.Faults = append(c.Faults, fmt.Sprintf("virtual server %s has destinations but the table refuses its packets", key))
		}
		if s.Flags&ipvs.Persistent != 0 {
			t.Affinity = s.Timeout
		}
		if scheduling := s.Scheduling(); scheduling != b.scheduler {
			t.Scheduler = scheduling.String()
		}
		c.Frontends[key] = t
	}
	for a := range c.ClusterIPs {
		if !addresses[a] {
			c.Faults = append(c.Faults, fmt.Sprintf("interface %s does not have address %s", Interface, a))
		}
		delete(addresses, a)
		if external[a] && !internal[a] {
			delete(c.ClusterIPs, a)
		}
	}
	if b.dummy.link != nil && b.dummy.isOurs() {
		differing, err := b.differingParameters()
		if err != nil {
			return nil, err
		}
		c.Faults = append(c.Faults, differing...)
	}
	for a := range addresses {
		c.Faults = append(c.Faults, fmt.Sprintf("interface %s has address %s of no Service", Interface, a))
	}
	slices.Sort(c.Faults)
	return c, nil
}

// readServer returns the backends of a virtual server.
func (b *Backend) readServer(ctx context.Context, s ipvs.Service) (dataplane.Choice, error) {
	all, err := b.conn.Destinations(ctx, s.Key)
	weights := destinations{}
	for _, d := range all {
		if d.Weight > 0 {
			weights[desired.NewBackend(d.AddrPort)] = int(d.Weight)
		}
	}
	return dataplane.ChoiceByShares(weights), err
}
