// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"

	"github.com/slipstream-proxy/slipstream/internal/collect"
	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/ipvs"
	"golang.org/x/sys/unix"
)

// Errors of requests that are ignored: the object exists, or was removed, already.
const (
	noService     = unix.ESRCH
	noDestination = unix.ENOENT
)

// step is a request, and the object that it concerns.
type step struct {
	request  ipvs.Request
	key      ipvs.Key
	to       netip.AddrPort // the destination; zero for the virtual server itself
	service  desired.ServicePort
	tolerate error
}

// plan has the steps of a change: those before the table changes and those after it.
type plan struct {
	first, last []step
	drain       drains
	refused     refusals
}

// drains are destinations without weight, by virtual server, and whether they are deleted even if
// they have connections.
type drains map[ipvs.Key]map[netip.AddrPort]bool

// servers is the record of what IPVS serves. Its pools refer to the frontends that have them in their
// virtual server.
type servers struct {
	scheduler ipvs.Scheduler // of frontends without their own
	pools     dataplane.Pools[pool]
	addresses map[netip.Addr]bool // that the dummy interface has, unless another interface has them
}

// pool is the record of a pool. Each of its backends has one slot.
type pool struct {
	dataplane.Pool
	weights dataplane.Weights
	destinations
}

// destinations are the weights of destinations; nil if all are 1.
type destinations map[desired.Backend]int

func (d destinations) weight(b desired.Backend) uint32 {
	if d == nil {
		return 1
	}
	return uint32(d[b])
}

// reweigh updates the weights by a change, before the backends. It reports whether there are or
// were any.
func (p *pool) reweigh(c *desired.PoolChange) bool {
	had := p.destinations != nil
	p.weights = p.weights.After(p.Slots, c)
	p.destinations = p.weights.Slots()
	return had || p.destinations != nil
}

func keyOf(f desired.FrontendKey) ipvs.Key {
	return ipvs.Key{Addr: f.Addr(), Port: f.Port(), Protocol: uint8(f.Protocol)}
}

// service returns the virtual server of a frontend.
func (s *servers) service(f *desired.Frontend) ipvs.Service {
	scheduler := s.scheduler
	if f.Scheduler != "" {
		scheduler, _ = parseScheduler(f.Scheduler) // valid ([Dataplane.Scheduler])
	}
	v := ipvs.Service{Key: keyOf(f.FrontendKey), Scheduler: scheduler.Name, Flags: scheduler.Flags, MaskBits: uint8(f.Addr().BitLen())}
	if f.Affinity != 0 {
		v.Flags, v.Timeout = v.Flags|ipvs.Persistent, f.Affinity
	}
	return v
}

func addrPort(b desired.Backend) netip.AddrPort { return netip.AddrPortFrom(b.Addr(), b.Port()) }

// write updates the record by a change and adds the steps for it to a plan.
func (s *servers) write(p *plan, change *desired.Change) {
	change.Sets[desired.ClusterIPs].Note(s.addresses)
	frontends := served(change)
	// The destinations of changed frontends, before their pools change.
	before := make([]pool, len(frontends))
	steps := len(frontends)
	for i := range frontends {
		if old := frontends[i].Old; old != nil {
			pool := s.pools.Get(old.VirtualServer())
			pool.Unrefer(old.FrontendKey)
			before[i] = *pool
			before[i].Slots = slices.Clone(pool.Slots)
		}
	}
	for i := range change.Pools {
		steps += len(change.Pools[i].Added)
	}
	p.first = slices.Grow(p.first, steps)
	for i := range change.Pools {
		c := &change.Pools[i]
		if !c.IPVS {
			continue
		}
		if c.New {
			pool := &pool{Pool: dataplane.NewPool(c)}
			s.pools.Set(c.ID, pool)
			pool.reweigh(c)
			pool.Slots = c.Added
		} else {
			pool := s.pools.Get(c.ID)
			pool.IfEmpty = c.IfEmpty
			was := pool.destinations
			weighted := pool.reweigh(c)
			pool.Replace(c.Removed, c.Added)
			for _, f := range pool.Frontends {
				s.replace(p, f, pool, c.Removed, c.Added)
				if weighted {
					s.reweigh(p, f, pool, was, c.Added)
				}
			}
		}
		if c.Gone {
			s.pools.Set(c.ID, nil)
		}
	}
	for i := range frontends {
		s.frontend(p, &frontends[i], &before[i])
	}
}

// served returns the changes of virtual servers: a frontend without counts as none.
func served(change *desired.Change) (all []desired.FrontendChange) {
	only := func(f *desired.Frontend) *desired.Frontend {
		if f != nil && f.IPVS {
			return f
		}
		return nil
	}
	for _, c := range change.Frontends {
		if c = (desired.FrontendChange{Old: only(c.Old), New: only(c.New)}); c.Old != nil || c.New != nil {
			all = append(all, c)
		}
	}
	return all
}

// frontend adds, changes or deletes a virtual server, which has the destinations before. The
// pools have their new content.
func (s *servers) frontend(p *plan, c *desired.FrontendChange, before *pool) {
	key := keyOf(c.Key())
	if c.New == nil {
		delete(p.drain, key)
		delete(p.refused, key)
		p.last = append(p.last, step{ipvs.DeleteService(key), key, netip.AddrPort{}, c.Old.Service, noService})
		return
	}
	pool := s.pools.Get(c.New.VirtualServer())
	pool.Refer(c.New)
	if p.refused.drop(key, netip.AddrPort{}) || c.Old == nil {
		s.add(p, c.New, pool)
		return
	}
	if v := s.service(c.New); v != s.service(c.Old) {
		p.first = append(p.first, step{ipvs.SetService(v), key, netip.AddrPort{}, c.New.Service, nil})
	}
	removed, added := difference(before.Slots, pool.Slots)
	s.replace(p, c.New, pool, removed, added)
	if before.destinations != nil || pool.destinations != nil {
		s.reweigh(p, c.New, pool, before.destinations, added)
	}
}

// add adds the steps for a virtual server that does not exist.
func (s *servers) add(p *plan, f *desired.Frontend, pool *pool) {
	key := keyOf(f.FrontendKey)
	p.first = append(p.first, step{ipvs.AddService(s.service(f)), key, netip.AddrPort{}, f.Service, nil})
	s.replace(p, f, pool, nil, pool.Slots)
}

// reweigh changes the weights of the destinations that a virtual server had before.
func (s *servers) reweigh(p *plan, f *desired.Frontend, pool *pool, was destinations, added []desired.Backend) {
	_, kept := difference(added, pool.Slots)
	for _, b := range kept {
		if n := pool.weight(b); n != was.weight(b) {
			key, d := keyOf(f.FrontendKey), ipvs.Destination{AddrPort: addrPort(b), Weight: n}
			p.first = append(p.first, step{ipvs.SetDestination(key, d), key, d.AddrPort, f.Service, nil})
		}
	}
}

// difference returns the backends that only one of two lists has.
func difference(before, after []desired.Backend) (removed, added []desired.Backend) {
	if len(before) == 0 {
		return nil, after
	}
	old := collect.Set(before)
	for _, b := range after {
		if !old[b] {
			added = append(added, b)
		}
		delete(old, b)
	}
	return slices.Collect(maps.Keys(old)), added
}

// replace changes the destinations of a virtual server of a pool.
func (s *servers) replace(p *plan, f *desired.Frontend, pool *pool, removed, added []desired.Backend) {
	key := keyOf(f.FrontendKey)
	for _, b := range s.order(f, added) {
		d := ipvs.Destination{AddrPort: addrPort(b), Weight: pool.weight(b)}
		if _, draining := p.drain[key][d.AddrPort]; draining {
			delete(p.drain[key], d.AddrPort)
			p.first = append(p.first, step{ipvs.SetDestination(key, d), key, d.AddrPort, f.Service, nil})
			continue
		}
		p.first = append(p.first, step{ipvs.AddDestination(key, d), key, d.AddrPort, f.Service, unix.EEXIST})
	}
	for _, b := range removed {
		d := ipvs.Destination{AddrPort: addrPort(b)}
		if p.refused.drop(key, d.AddrPort) {
			continue // the kernel does not have it
		}
		if p.drain[key] == nil {
			p.drain[key] = map[netip.AddrPort]bool{}
		}
		p.drain[key][d.AddrPort] = false
		p.last = append(p.last, step{ipvs.SetDestination(key, d), key, d.AddrPort, f.Service, noDestination})
	}
}

// order returns backends in the order in which a virtual server gets them. It is random, so that
// the first connections of all nodes do not go to the same backend (kubernetes #121591). Schedulers
// that choose by position alone have one order on all nodes.
func (s *servers) order(f *desired.Frontend, added []desired.Backend) []desired.Backend {
	all := slices.Clone(added)
	switch s.service(f).Scheduler {
	case "sh", "mh", "dh", "fo", "ovf":
		slices.SortFunc(all, desired.Backend.Compare)
	default:
		rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	}
	return all
}

// each calls visit with each virtual server's frontend and pool.
func (s *servers) each(visit func(*desired.Frontend, *pool)) {
	for _, pool := range s.pools {
		if pool == nil {
			continue
		}
		for _, f := range pool.Frontends {
			visit(f, pool)
		}
	}
}
