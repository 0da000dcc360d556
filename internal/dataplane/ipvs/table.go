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
//     [dataplane.ServedByIPVS]
//   - one with all backends, while a frontend uses it: one with a pool for traffic from outside,
//     for connections that start on this node, or one that the table serves
//
// IPVS serves an external IP only while an interface of the node has it. It may be another
// machine's address, which this node could not reach if its dummy interface had it. Otherwise
// the table serves it, and its virtual servers receive no packets. The same goes for the IP of a
// load balancer that is another Node's, as those of k3s's ServiceLB are.
type translation struct {
	tableUsers map[desired.PoolID]int // number of frontends that need the second one
	own        map[netip.Addr]bool    // addresses of the node's interfaces other than the dummy
	others     map[netip.Addr]bool    // addresses of other Nodes

	// external has the frontends of external IPs and of the IPs of load balancers.
	external map[netip.Addr]map[desired.FrontendKey]*desired.Frontend

	// The dummy interface has ClusterIPs, and the IPs of load balancers, with their numbers of
	// frontends, that no other interface and no other Node has.
	clusterIPs    map[netip.Addr]bool
	loadBalancers map[netip.Addr]int
}

func newTranslation() translation {
	return translation{
		tableUsers: map[desired.PoolID]int{}, own: map[netip.Addr]bool{}, others: map[netip.Addr]bool{},
		external:   map[netip.Addr]map[desired.FrontendKey]*desired.Frontend{},
		clusterIPs: map[netip.Addr]bool{}, loadBalancers: map[netip.Addr]int{},
	}
}

// inTable reports whether the table serves a frontend.
func (t *translation) inTable(f *desired.Frontend) bool {
	a := f.Addr()
	return !t.own[a] && (f.Kind == desired.ExternalIP || f.Kind == desired.LoadBalancerIP && t.others[a])
}

// onDummy reports whether the dummy interface has an address.
func (t *translation) onDummy(a netip.Addr) bool {
	return t.clusterIPs[a] || t.loadBalancers[a] > 0 && !t.own[a] && !t.others[a]
}

// tablePools lists the pools of which the table needs all backends for a frontend.
func (t *translation) tablePools(f *desired.Frontend) []desired.PoolID {
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

// ipvsPool and tablePool return the IDs of a pool's two in the table; tablePool(NoPool) is NoPool.
func ipvsPool(id desired.PoolID) desired.PoolID { return 2 * id }

func tablePool(id desired.PoolID) desired.PoolID { return 2*id + 1 }

// change translates a change. The record has the new content, and before the sizes of the
// change's pools in the old one.
func (t *translation) change(c *desired.Change, before []int, record *servers) *desired.Change {
	out := *c
	frontends := t.moved(c)
	out.Pools, out.Frontends = nil, nil
	was := map[desired.PoolID]int{} // of the pools for which tableUsers may differ
	refer := func(f *desired.Frontend, n int) {
		for _, id := range t.tablePools(f) {
			if _, known := was[id]; !known {
				was[id] = t.tableUsers[id]
			}
			if t.tableUsers[id] += n; t.tableUsers[id] == 0 {
				delete(t.tableUsers, id)
			}
		}
	}
	old := make([]*desired.Frontend, len(frontends)) // in the table
	for i := range frontends {
		refer(frontends[i].Old, -1)
		old[i] = t.frontend(frontends[i].Old)
	}
	out.Sets[desired.ClusterIPs] = t.addresses(c)
	for i := range frontends {
		refer(frontends[i].New, 1)
		next := t.frontend(frontends[i].New)
		if old[i] == nil || next == nil || *old[i] != *next {
			out.Frontends = append(out.Frontends, desired.FrontendChange{Old: old[i], New: next})
		}
	}
	for i := range c.Pools {
		p := &c.Pools[i]
		if v, differs := ipvsPoolChange(p, before[i]); differs {
			out.Pools = append(out.Pools, v)
		}
		users, changed := was[p.ID]
		if !changed {
			users = t.tableUsers[p.ID]
		}
		delete(was, p.ID)
		if r, exists := t.tablePoolChange(p, users > 0 && !p.New, record.pools.Get(p.ID)); exists {
			out.Pools = append(out.Pools, r)
		}
	}
	for id, users := range was { // their backends stay
		if (users > 0) == (t.tableUsers[id] > 0) {
			continue
		}
		pool := record.pools.Get(id)
		r, _ := t.tablePoolChange(&desired.PoolChange{ID: id, Service: pool.Service, Family: pool.Family, Scope: pool.Scope,
			Sibling: desired.NoPool, Sticky: pool.Sticky, IfEmpty: pool.IfEmpty}, users > 0, pool)
		out.Pools = append(out.Pools, r)
	}
	return &out
}

// ipvsPoolChange translates the change of a pool that IPVS serves. It reports whether there is
// one in the table.
func ipvsPoolChange(p *desired.PoolChange, before int) (v desired.PoolChange, differs bool) {
	after := before + len(p.Added) - len(p.Removed)
	if p.Gone {
		after = 0
	}
	v = *p
	v.ID, v.Sibling, v.Sticky, v.Added, v.Removed, v.Weights = ipvsPool(p.ID), ipvsPool(p.Sibling), false, nil, nil, nil
	if before == 0 && after > 0 {
		v.Added = []desired.Backend{dataplane.ServedByIPVS}
	}
	if before > 0 && after == 0 {
		v.Removed = []desired.Backend{dataplane.ServedByIPVS}
	}
	return v, p.New || p.Gone || after == 0 || before == 0
}

// tablePoolChange translates the change of a pool that has all backends. It reports whether the table
// had or needs it. The record has the new backends; nil if the pool was deleted.
func (t *translation) tablePoolChange(p *desired.PoolChange, had bool, record *pool) (r desired.PoolChange, exists bool) {
	needed := t.tableUsers[p.ID] > 0 && !p.Gone
	r = *p
	r.ID, r.Sibling, r.New, r.Gone = tablePool(p.ID), tablePool(p.Sibling), needed && !had, had && !needed
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
		c.Pool, c.LocalPool = tablePool(f.Pool), tablePool(f.LocalPool)
	case t.inTable(f):
		c.Pool = tablePool(f.Pool)
	case f.LocalPool != desired.NoPool:
		c.Pool, c.LocalPool = tablePool(f.Pool), ipvsPool(f.LocalPool)
	default:
		c.Pool, c.Affinity = ipvsPool(f.Pool), 0
	}
	return &c
}

// moved adds the frontends that switch between IPVS and the table because the node gained or lost
// their address.
func (t *translation) moved(c *desired.Change) []desired.FrontendChange {
	all := slices.Clone(c.Frontends)
	for i := range c.Frontends {
		if f := c.Frontends[i].Old; f != nil && mayMove(f) {
			if delete(t.external[f.Addr()], f.FrontendKey); len(t.external[f.Addr()]) == 0 {
				delete(t.external, f.Addr())
			}
		}
	}
	moved := map[netip.Addr]bool{}
	for _, set := range []desired.Set{desired.OwnIPs, desired.OtherNodeIPs} {
		for m := range c.Sets[set].All() {
			moved[m.Addr] = true
		}
	}
	for a := range moved {
		for _, f := range t.external[a] {
			all = append(all, desired.FrontendChange{Old: f, New: f})
		}
	}
	for i := range c.Frontends {
		if f := c.Frontends[i].New; f != nil && mayMove(f) {
			if t.external[f.Addr()] == nil {
				t.external[f.Addr()] = map[desired.FrontendKey]*desired.Frontend{}
			}
			t.external[f.Addr()][f.FrontendKey] = f
		}
	}
	return all
}

// mayMove reports whether inTable may differ for a frontend at another time.
func mayMove(f *desired.Frontend) bool {
	return f.Kind == desired.ExternalIP || f.Kind == desired.LoadBalancerIP
}

// addresses updates the records of addresses by a change, and returns the change of the dummy
// interface's. Like a ClusterIP, each belongs to Services as a whole.
func (t *translation) addresses(c *desired.Change) (out desired.SetChange) {
	was := map[netip.Addr]bool{}
	note := func(a netip.Addr) {
		if _, known := was[a]; !known {
			was[a] = t.onDummy(a)
		}
	}
	update := func(record map[netip.Addr]bool, set desired.Set) {
		for m := range c.Sets[set].All() {
			note(m.Addr)
		}
		c.Sets[set].Note(record)
	}
	count := func(f *desired.Frontend, n int) {
		if f == nil || f.Kind != desired.LoadBalancerIP {
			return
		}
		note(f.Addr())
		if t.loadBalancers[f.Addr()] += n; t.loadBalancers[f.Addr()] == 0 {
			delete(t.loadBalancers, f.Addr())
		}
	}
	update(t.clusterIPs, desired.ClusterIPs)
	update(t.own, desired.OwnIPs)
	update(t.others, desired.OtherNodeIPs)
	for i := range c.Frontends {
		count(c.Frontends[i].Old, -1)
		count(c.Frontends[i].New, 1)
	}
	for a, had := range was {
		switch has := t.onDummy(a); {
		case has && !had:
			out.Added = append(out.Added, desired.Address(a))
		case had && !has:
			out.Removed = append(out.Removed, desired.Address(a))
		}
	}
	return out
}
