// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/ipvs"
	"k8s.io/klog/v2"
)

// These bound what one Check reads: the pools if they are few, the virtual servers with destinations that drain,
// and what the kernel has refused.
const (
	sampleSize  = 16
	drainsSize  = 256
	refusedSize = 256
)

// Check implements dataplane.Dataplane. IPVS has no generation by which a modification by
// another process shows, so each call lists the virtual servers with their destinations and compares them, unless that takes
// more than 2 % of the time. If there are fewer for IPv4 than before it does so at once, without destinations. It makes lost
// ones again. It looks whether the addresses of a few pools are the node's, such that each is looked
// for in Options.SyncPeriod. It puts back parameters that differ, and deletes destinations without
// weight whose connections have ended. It tries again what the kernel has refused.
func (b *Dataplane) Check(ctx context.Context) error {
	if err := b.sequence.Check(); err != nil {
		return err
	}
	if err := b.table.Check(ctx); err != nil {
		return err
	}
	if err := b.endDrains(ctx); err != nil {
		return err
	}
	differing, err := b.differingParameters(ctx)
	if len(differing) > 0 {
		klog.FromContext(ctx).Info("Puts back what IPVS mode needs", "parameters", differing)
		err = errors.Join(err, dataplane.Inside(b.config.NetNS, func() error { return b.dummy.setParameters(ctx, b.parameters()) }))
	}
	return errors.Join(err, b.checkServers(ctx), b.checkSample(ctx), b.tryRefused(ctx))
}

// checkSample looks for the addresses of a few pools.
func (b *Dataplane) checkSample(ctx context.Context) error {
	all := len(b.servers.pools)
	share := float64(time.Since(b.sampled)) / float64(cmp.Or(b.options.SyncPeriod, 30*time.Second))
	b.sampled = time.Now()
	for n := min(max(sampleSize, int(share*float64(all))), all); n > 0; n-- {
		b.nextSample = (b.nextSample + 1) % len(b.servers.pools)
		pool := b.servers.pools[b.nextSample]
		if pool == nil || len(pool.Slots) == 0 {
			continue
		}
		for _, f := range pool.Frontends {
			if err := b.checkAddress(ctx, f); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkServers looks for virtual servers and destinations that are gone or were modified. It takes 2 % of the time at most,
// unless virtual servers are gone. It makes those again, as Reconcile may take seconds.
func (b *Dataplane) checkServers(ctx context.Context) error {
	start := time.Now()
	others, err := dataplane.In(b.config.NetNS, ipvs.Number) // below: virtual servers of other programs for IPv4
	b.servers.each(func(f *desired.Frontend, _ *pool) {
		if f.Addr().Is4() && !b.refused.has(keyOf(f.FrontendKey), netip.AddrPort{}) {
			others--
		}
	})
	fewer := others < b.others
	b.others = others
	if err != nil || !fewer && start.Sub(b.listed) < 50*b.listing {
		return err
	}
	has, err := b.byAddress(ctx)
	if err != nil {
		return err
	}
	var destinations map[ipvs.Key][]ipvs.Destination
	if !fewer {
		destinations, err = dataplane.In(b.config.NetNS, ipvs.Listing)
	}
	again := plan{refused: b.refused}
	b.servers.each(func(f *desired.Frontend, pool *pool) {
		want := b.servers.service(f)
		got, exists := has[want.Key]
		switch {
		case b.refused.has(want.Key, netip.AddrPort{}):
		case !exists:
			err = fmt.Errorf("%w: Service %s: virtual server %s is gone", dataplane.ErrDamaged, f.Service, f.FrontendKey)
			delete(b.drain, want.Key)
			b.servers.add(&again, f, pool)
		case err != nil || fewer && got == want:
		case got == want:
			if b.checkDestinations(f, pool, destinations[want.Key]) == nil {
				break
			}
			// The kernel's listing leaves out servers while other network namespaces have some, too.
			var all []ipvs.Destination
			if all, err = b.conn.Destinations(ctx, want.Key); err == nil {
				err = b.checkDestinations(f, pool, all)
			}
		default:
			err = fmt.Errorf("%w: Service %s: virtual server %s was modified", dataplane.ErrDamaged, f.Service, f.FrontendKey)
		}
	})
	if !fewer {
		b.listed, b.listing = time.Now(), time.Since(start)
	}
	return errors.Join(err, b.execute(ctx, again.first))
}

// checkDestinations compares the destinations of a virtual server with its pool.
func (b *Dataplane) checkDestinations(f *desired.Frontend, pool *pool, all []ipvs.Destination) error {
	key := keyOf(f.FrontendKey)
	missing := make(map[netip.AddrPort]uint32, len(pool.Slots))
	for _, backend := range pool.Slots {
		if to := addrPort(backend); !b.refused.has(key, to) {
			missing[to] = pool.weight(backend)
		}
	}
	surplus, reweighed := 0, 0
	for _, d := range all {
		switch n, wanted := missing[d.AddrPort]; {
		case !wanted && d.Weight > 0:
			surplus++
		case wanted && (d.Weight != n || !d.Masquerading || d.Limited):
			reweighed++
		}
		delete(missing, d.AddrPort)
	}
	if surplus+reweighed+len(missing) > 0 {
		return fmt.Errorf("%w: Service %s: virtual server %s lacks %d of %d destinations, has %d others, and %d with another weight or method", dataplane.ErrDamaged, f.Service, f.FrontendKey, len(missing), len(pool.Slots), surplus, reweighed)
	}
	return nil
}

// checkAddress looks for the address of a frontend. If another process has deleted its route alone, it is added again.
func (b *Dataplane) checkAddress(ctx context.Context, f *desired.Frontend) error {
	if a := f.Addr(); b.servers.addresses[a] && !b.refused.has(ipvs.Key{Addr: a}, netip.AddrPort{}) && !b.dummy.isLocal(a) {
		has, err := b.dummy.addresses()
		if err != nil {
			return err
		}
		if has[a] {
			again := []desired.Member{desired.Address(a)}
			return b.changeAddresses(ctx, &desired.SetChange{Removed: again, Added: again})
		}
		return fmt.Errorf("%w: Service %s: interface %s does not have address %s", dataplane.ErrDamaged, f.Service, Interface, a)
	}
	return nil
}

// endDrains deletes the destinations without weight whose connections have ended.
func (b *Dataplane) endDrains(ctx context.Context) error {
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
			now, draining := drains[d.AddrPort]
			if draining && (d.Connections() == 0 || now) {
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

// EndFlows implements dataplane.FlowEnder. It deletes destinations without weight. If that fails, Check does it. TCP of some
// frontends, which means connections without an answer, needs nothing: the next SYN gets another destination
// (net.ipv4.vs.expire_nodest_conn).
func (b *Dataplane) EndFlows(ctx context.Context, flows []desired.StaleFlows) error {
	ended := map[ipvs.Key][]netip.AddrPort{}
	end := func(key ipvs.Key, f *desired.StaleFlows) {
		for to := range b.drain[key] {
			if slices.Contains(f.Backends, desired.NewBackend(to)) != f.Only {
				ended[key] = append(ended[key], to)
				b.drain[key][to] = true
			}
		}
	}
	for i := range flows {
		f := &flows[i]
		if f.Protocol != desired.TCP {
			for _, frontend := range f.Frontends {
				end(keyOf(frontend), f)
			}
			continue
		}
		for key := range b.drain { // of any frontend
			if key.Protocol == uint8(desired.TCP) && len(f.Frontends) == 0 {
				end(key, f)
			}
		}
	}
	return b.end(ctx, ended)
}

// end deletes destinations without weight.
func (b *Dataplane) end(ctx context.Context, ended map[ipvs.Key][]netip.AddrPort) error {
	var steps []step
	for key, all := range ended {
		for _, to := range all {
			steps = append(steps, step{request: ipvs.DeleteDestination(key, to), key: key, to: to, tolerate: noDestination})
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

// ReadFrontend implements dataplane.Reader.
func (b *Dataplane) ReadFrontend(ctx context.Context, want *desired.Change) (*dataplane.Content, error) {
	return dataplane.ReadOne(ctx, b.Read, want)
}

// Read implements dataplane.Reader.
func (b *Dataplane) Read(ctx context.Context) (*dataplane.Content, error) {
	c, err := b.table.Read(ctx)
	if err != nil {
		return nil, err
	}
	c.Refuses = func(backend desired.Backend) bool {
		refused, err := b.conn.Try(ctx, b.scheduler.Name, backend.Addr().Is6(), addrPort(backend))
		return err == nil && refused != nil
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
	for _, s := range all {
		key := desired.FrontendKey{AddrPort: netip.AddrPortFrom(s.Addr, s.Port), Protocol: desired.Protocol(s.Protocol)}
		t, exists := c.Frontends[key]
		served, err := b.readServer(ctx, s)
		if err != nil {
			return nil, err
		}
		choice := &t.Choice
		if t.FromOutside != nil {
			choice = t.FromOutside
		}
		if choice.ByIPVS {
			*choice = served
		} else if may, err := b.conn.MayBeProxys(ctx, s.Key, b.options.Exclude); err != nil {
			return nil, err
		} else if !may {
			continue
		} else if !exists || len(served.Backends) > 0 { // while there is no endpoint, the table refuses
			c.Faults = append(c.Faults, fmt.Sprintf("virtual server %s of no frontend that IPVS serves", key))
			continue
		}
		if s.Flags&ipvs.Persistent != 0 {
			t.Affinity = s.Timeout
		}
		if scheduling := s.Scheduling(); scheduling != b.scheduler {
			t.Scheduler = scheduling.String()
		}
		c.Frontends[key] = t
	}
	for m := range c.Sets[desired.ClusterIPs] {
		a := m.Addr
		if !addresses[a] {
			c.Faults = append(c.Faults, fmt.Sprintf("interface %s does not have address %s", Interface, a))
		}
		delete(addresses, a)
	}
	if b.dummy.link != nil && b.dummy.isOurs() {
		differing, err := b.differingParameters(ctx)
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

// Rules implements dataplane.Reader.
func (b *Dataplane) Rules(ctx context.Context, full *desired.Change) (n int, faults []string, err error) {
	n, faults, err = b.table.Rules(ctx, full)
	has, failed := b.byAddress(ctx)
	want := servers{scheduler: b.scheduler}
	for i := range full.Frontends {
		f := full.Frontends[i].New
		if !f.IPVS {
			continue
		}
		want := want.service(f)
		got, exists := has[want.Key]
		if !exists {
			continue // Read reports it
		}
		if got.Flags != want.Flags || got.MaskBits != want.MaskBits || got.Engine != "" {
			faults = append(faults, fmt.Sprintf("virtual server %s has flags %#x, netmask %d and persistence engine %q instead of %#x, %d and none", f.FrontendKey, got.Flags, got.MaskBits, got.Engine, want.Flags, want.MaskBits))
		}
		all, err := b.conn.Destinations(ctx, want.Key)
		failed = errors.Join(failed, err)
		for _, d := range all {
			if !d.Masquerading {
				faults = append(faults, fmt.Sprintf("virtual server %s does not masquerade to %s", f.FrontendKey, d.AddrPort))
			}
			if d.Limited {
				faults = append(faults, fmt.Sprintf("virtual server %s has a threshold of connections for %s", f.FrontendKey, d.AddrPort))
			}
		}
	}
	return n, faults, errors.Join(err, failed)
}

// readServer returns the backends of a virtual server.
func (b *Dataplane) readServer(ctx context.Context, s ipvs.Service) (dataplane.Choice, error) {
	all, err := b.conn.Destinations(ctx, s.Key)
	weights := destinations{}
	for _, d := range all {
		if d.Weight > 0 {
			weights[desired.NewBackend(d.AddrPort)] = int(d.Weight)
		}
	}
	return dataplane.ChoiceByShares(weights), err
}
