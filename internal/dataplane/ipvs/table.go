// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"net/netip"
	"slices"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// translation turns changes into those of the table. Each pool has up to two there:
//
//   - one for traffic that IPVS serves, whose only backend, if the pool has any, is
//     [dataplane.Elsewhere]
//   - one with all backends, while a frontend uses it: one with a pool for traffic from outside,
//     for connections that start on this node, or one that the table serves
//
// The table serves external IPs in a network of the node. They may be addresses of other
// machines, which this node could not reach if its own interface had them. Their virtual servers
// receive no packets.
type translation struct {
	inside    map[desired.PoolID]int // number of frontends that need the second one
	addresses map[netip.Addr]int     // how many ClusterIPs and frontends have an address

	// own reports whether an interface other than the dummy has an address. Skipped are
	// the addresses for which it did.
	own     func(netip.Addr) bool
	skipped map[netip.Addr]bool

	// neighbour reports whether an address may be another machine's.
	neighbour func(netip.Addr) bool
	external  map[netip.Addr]*externalIP
}

// externalIP is an address of spec.externalIPs. Whether it may be another machine's is found out
// for its first frontend, and stays so while it has frontends.
type externalIP struct {
	frontends int
	neighbour bool
}

// arrive counts the frontends that a change adds, before it is translated.
func (t *translation) arrive(c *desired.Change) {
	for i := range c.Frontends {
		if f := c.Frontends[i].New; f != nil && f.Kind == desired.ExternalIP {
			e := t.external[f.Addr()]
			if e == nil {
				e = &externalIP{neighbour: t.neighbour(f.Addr())}
				t.external[f.Addr()] = e
			}
			e.frontends++
		}
	}
}

// leave counts the frontends that a change removes, when it is translated.
func (t *translation) leave(c *desired.Change) {
	for i := range c.Frontends {
		if f := c.Frontends[i].Old; f != nil && f.Kind == desired.ExternalIP {
			if e := t.external[f.Addr()]; e.frontends > 1 {
				e.frontends--
			} else {
				delete(t.external, f.Addr())
			}
		}
	}
}

// inTable reports whether the table serves a frontend.
func (t *translation) inTable(f *desired.Frontend) bool {
	return f.Kind == desired.ExternalIP && t.external[f.Addr()].neighbour
}

// realPools lists the pools of which the table needs all backends for a frontend.
func (t *translation) realPools(f *desired.Frontend) []desired.PoolID {
	switch {
	case f == nil:
		return nil
	case t.inTable(f):
		return f.Pools()
	case f.LocalPool != desired.NoPool:
		return []desired.PoolID{f.Pool}
	}
	return nil
}

// virtual and real return the IDs of a pool's two in the table; real(NoPool) is NoPool.
func virtual(id desired.PoolID) desired.PoolID { return 2 * id }

func real(id desired.PoolID) desired.PoolID { return 2*id + 1 }

// change translates a change. The record has the new content, and before the sizes of the
// change's pools in the old one.
func (t *translation) change(c *desired.Change, before []int, record *servers) *desired.Change {
	out := *c
	out.Pools, out.Frontends = nil, make([]desired.FrontendChange, len(c.Frontends))
	was := map[desired.PoolID]int{} // of the pools for which inside may differ
	refer := func(f *desired.Frontend, n int) {
		for _, id := range t.realPools(f) {
			if _, known := was[id]; !known {
				was[id] = t.inside[id]
			}
			if t.inside[id] += n; t.inside[id] == 0 {
				delete(t.inside, id)
			}
		}
	}
	for i := range c.Frontends {
		f := &c.Frontends[i]
		refer(f.Old, -1)
		refer(f.New, 1)
		out.Frontends[i] = desired.FrontendChange{Old: t.frontend(f.Old), New: t.frontend(f.New)}
	}
	for i := range c.Pools {
		p := &c.Pools[i]
		if v, differs := virtualPool(p, before[i]); differs {
			out.Pools = append(out.Pools, v)
		}
		users, changed := was[p.ID]
		if !changed {
			users = t.inside[p.ID]
		}
		delete(was, p.ID)
		if r, exists := t.realPool(p, users > 0 && !p.New, record.pools.Get(p.ID)); exists {
			out.Pools = append(out.Pools, r)
		}
	}
	for id, users := range was { // their backends stay
		if (users > 0) == (t.inside[id] > 0) {
			continue
		}
		pool := record.pools.Get(id)
		r, _ := t.realPool(&desired.PoolChange{ID: id, Service: pool.Service, Family: pool.Family, Scope: pool.Scope,
			Sibling: desired.NoPool, Sticky: pool.Sticky, IfEmpty: pool.IfEmpty}, users > 0, pool)
		out.Pools = append(out.Pools, r)
	}
	out.ClusterIPs = t.clusterIPs(c)
	return &out
}

// virtualPool translates the change of a pool that IPVS serves. It reports whether there is
// one in the table.
func virtualPool(p *desired.PoolChange, before int) (v desired.PoolChange, differs bool) {
	after := before + len(p.Added) - len(p.Removed)
	if p.Gone {
		after = 0
	}
	v = *p
	v.ID, v.Sibling, v.Sticky, v.Added, v.Removed, v.Weights = virtual(p.ID), virtual(p.Sibling), false, nil, nil, nil
	if before == 0 && after > 0 {
		v.Added = []desired.Backend{dataplane.Elsewhere}
	}
	if before > 0 && after == 0 {
		v.Removed = []desired.Backend{dataplane.Elsewhere}
	}
	return v, p.New || p.Gone || after == 0 || before == 0
}

// realPool translates the change of a pool that has all backends. It reports whether the table
// had or needs it. The record has the new backends; nil if the pool is gone.
func (t *translation) realPool(p *desired.PoolChange, had bool, record *pool) (r desired.PoolChange, exists bool) {
	needed := t.inside[p.ID] > 0 && !p.Gone
	r = *p
	r.ID, r.Sibling, r.New, r.Gone = real(p.ID), real(p.Sibling), needed && !had, had && !needed
	switch {
	case needed && had:
		r.Added, r.Removed = slices.Clone(p.Added), slices.Clone(p.Removed)
	case needed:
		r.Added, r.Removed, r.Weights = slices.Clone(record.Slots), nil, nil
		for b, n := range record.weights {
			r.Weights = append(r.Weights, desired.Weight{Backend: b, Weight: n})
		}
	case had:
		r.Added, r.Removed, r.Weights = nil, slices.Clone(p.Removed), nil
		if record != nil {
			_, kept := difference(p.Added, record.Slots)
			r.Removed = append(r.Removed, kept...)
		}
	}
	return r, needed || had
}

// frontend translates a frontend. The affinity of one that only IPVS serves is that of its
// virtual server.
func (t *translation) frontend(f *desired.Frontend) *desired.Frontend {
	if f == nil {
		return nil
	}
	c := *f
	c.Scheduler = ""
	switch {
	case t.inTable(f) && f.LocalPool != desired.NoPool:
		c.Pool, c.LocalPool = real(f.Pool), real(f.LocalPool)
	case t.inTable(f):
		c.Pool = real(f.Pool)
	case f.LocalPool != desired.NoPool:
		c.Pool, c.LocalPool = real(f.Pool), virtual(f.LocalPool)
	default:
		c.Pool, c.Affinity = virtual(f.Pool), 0
	}
	return &c
}

// clusterIPs returns the change of the addresses of the dummy interface: ClusterIPs, and the
// other addresses of Services that no interface of the node has. Like a ClusterIP, each
// belongs to Services as a whole.
func (t *translation) clusterIPs(c *desired.Change) (out desired.AddressChange) {
	was := map[netip.Addr]bool{}
	count := func(a netip.Addr, n int) {
		if _, known := was[a]; !known {
			was[a] = t.addresses[a] > 0
		}
		if t.addresses[a] += n; t.addresses[a] == 0 {
			delete(t.addresses, a)
		}
	}
	for i := range c.Frontends {
		if f := c.Frontends[i].Old; f != nil && t.onDummy(f) {
			count(f.Addr(), -1)
		}
		if f := c.Frontends[i].New; f != nil && t.onDummy(f) {
			count(f.Addr(), 1)
		}
	}
	for _, a := range c.ClusterIPs.Removed {
		count(a, -1)
	}
	for _, a := range c.ClusterIPs.Added {
		count(a, 1)
	}
	for a, had := range was {
		switch has := t.addresses[a] > 0; {
		case has == had:
		case has && t.own(a):
			t.skipped[a] = true
		case has:
			out.Added = append(out.Added, a)
		case t.skipped[a]:
			delete(t.skipped, a)
		default:
			out.Removed = append(out.Removed, a)
		}
	}
	return out
}

// onDummy reports whether the dummy interface needs a frontend's address, besides those in
// desired.Change.ClusterIPs.
func (t *translation) onDummy(f *desired.Frontend) bool {
	return f.Kind == desired.LoadBalancerIP || f.Kind == desired.ExternalIP && !t.inTable(f)
}
