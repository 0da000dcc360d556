// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"cmp"
	"math"
	"slices"
)

// Change returns the difference from the last Change or Full, or a part of it (MaxChange).
func (s *State) Change() *Update {
	if s.local() != s.reportedLocal {
		return &Update{Change: Change{Rebuild: true, Local: s.local()}}
	}
	return s.collect(s.mostChange())
}

func (s *State) mostChange() int { return cmp.Or(s.config.NamespaceChange, MaxChange) }

// MaxChange is how many backends and slots of a namespace one Change gives anew, about, so that others do not wait for
// all of a large one. Of a Service port with more, a part is added and removed. New pools for frontends that were
// there before have all backends at once, but for slots for algorithms and weights, one pool after the other
// (State.holdBack). A port with such slots goes at once.
const MaxChange = 1 << 9

// Pending reports whether the last Change left something for the next.
func (s *State) Pending() bool { return len(s.dirtyEndpoints) > 0 }

// Partial returns the Service ports of which the last change of a pool was partial ([PoolChange.Partial]).
func (s *State) Partial() (all []ServicePort) {
	for _, e := range s.dirtyEndpoints {
		if slices.ContainsFunc(e.pools[:], func(p *pool) bool { return p != nil && p.partial }) {
			all = append(all, e.port.name)
		}
	}
	return all
}

// Postpones reports whether the last Change left something of a namespace for the next, other than what has become
// due since it began to do so. Further events of the namespace should wait, or each costs as much as the last one.
func (s *State) Postpones(namespace string) bool { return s.postponed[namespace] }

// comes reports whether a pool is new, or used again.
func (e *endpoints) comes() bool {
	return slices.ContainsFunc(e.pools[:], func(p *pool) bool { return p != nil && !p.gone && (!p.reported || p.choice.class == classes) })
}

// holdBack returns large endpoints that wait for a later change, as those of their namespace that replace others have more
// than a number of backends and slots to choose. It returns those that they replace, too: frontends lead there until then.
func (s *State) holdBack(most int) map[*endpoints]bool {
	held, spent := map[*endpoints]bool{}, map[string]int{}
	for _, e := range s.dirtyEndpoints {
		of, n := e.port.name.Namespace, len(e.entries)+e.counted/tableCost
		switch {
		case !e.comes():
		case spent[of] > 0 && spent[of]+n > most && s.replaces(e, 16*n/most): // each change looks at all that wait
			held[e] = true
		default:
			spent[of] += n
		}
	}
	s.dirtyFrontends = slices.DeleteFunc(s.dirtyFrontends, func(f *frontend) bool {
		if !s.serves(f) || !held[f.claims[0].port.endpoints[FamilyOf(f.key.Addr())]] {
			return false
		}
		s.heldFrontends = append(s.heldFrontends, f)
		for _, id := range f.reported.Pools() {
			held[s.pools[id].of] = true
		}
		return true
	})
	return held
}

// replaces reports whether a Service port is new, and each of its frontends, at most a number, was one of a port that the
// Service has no more.
func (s *State) replaces(e *endpoints, most int) bool {
	all, n := !s.ranged, 0
	s.eachClaim(e.port.service.spec, []*port{e.port}, func(key FrontendKey, _ AddressKind, port *port) {
		f := s.frontends[key]
		if FamilyOf(key.Addr()) != e.family || f == nil || f.claims[0].port != port || !s.serves(f) {
			return
		}
		if n++; f.reported == nil {
			all = false
			return
		}
		for _, id := range f.reported.Pools() {
			former := s.pools[id].of
			all = all && former.gone && former.port.service == e.port.service
		}
	})
	return all && n > 0 && n <= most
}

// changePools adds the differences of pools, and leaves those of namespaces with more than a number of backends and
// slots for the next report, in order, as well as those that are held back. It returns the endpoints that it has looked at.
func (s *State) changePools(c *Update, most int, held map[*endpoints]bool) (changed []*endpoints) {
	all, before, spent := s.dirtyEndpoints, s.postponed, map[string]int{}
	s.dirtyEndpoints, s.postponed = nil, map[string]bool{}
	for _, e := range all {
		of := e.port.name.Namespace
		if held[e] {
			e.late, s.postponed[of] = true, true
			s.dirtyEndpoints = append(s.dirtyEndpoints, e)
			continue
		}
		room, comes := most-spent[of], e.comes()
		e.waits = (room <= 0 || s.moves[e] != nil) && (e.counted > 0 || !comes)
		if comes || !e.waits {
			if e.gone && e.written > 0 || comes && (e.told || s.succeeds(e)) {
				s.moveWaiting(e, math.MaxInt)
				room = math.MaxInt
			}
			spent[of] += e.change(c, s, max(room, 2))
			e.dirty = e.waits || !e.complete() || s.moves[e] != nil
			changed = append(changed, e)
		}
		if e.late = e.dirty && (e.late || !before[of]); e.dirty {
			s.postponed[of] = s.postponed[of] || e.late
			s.dirtyEndpoints = append(s.dirtyEndpoints, e)
		}
	}
	return changed
}

// succeeds reports whether a new Service port has frontends that were there before.
func (s *State) succeeds(e *endpoints) (has bool) {
	s.eachClaim(e.port.service.spec, []*port{e.port}, func(key FrontendKey, _ AddressKind, _ *port) {
		f := s.frontends[key]
		has = has || f != nil && f.reported != nil
	})
	return has
}

// collect returns the difference from the last report, with at most so many backends and slots of a namespace, and
// marks it as reported.
func (s *State) collect(most int) *Update {
	s.reportedLocal, s.reportedRanged = s.local(), s.ranged
	for i := 0; len(s.moves) > 0 && i < len(s.dirtyEndpoints); i++ {
		s.moveWaiting(s.dirtyEndpoints[i], most)
	}
	clear(s.moved)
	s.keepBudgets()
	s.placeLimits()
	c := &Update{Change: Change{Local: s.reportedLocal, Ranges: s.ranged, Masquerade: s.config.masquerade()}}
	s.decideRanges()
	held := s.holdBack(most)
	owners := s.formerOwners()
	c.Pools, c.Frontends = make([]PoolChange, 0, len(s.dirtyEndpoints)), make([]FrontendChange, 0, len(s.dirtyFrontends))
	changed := s.changePools(c, most, held)
	for _, e := range changed {
		if f := s.frontends[frontendKey(loopbacks[e.family], e.port.nodePort, e.port)]; f != nil && s.config.relayed(f.key) {
			s.dirtyFrontend(f)
		}
		put(s.following, e, e.followsLoads() && len(e.entries) > 0 && !e.gone)
		s.followWarming(e)
		put(s.detecting, e, e.detection() != "")
		s.schedulesByWeight(e)
		s.failsOver(e)
		c.Flows = s.staleFlows(c.Flows, e)
		c.Flows = s.unansweredFlows(c.Flows, e)
		for kind, p := range e.pools {
			if p == nil {
				continue
			}
			s.countNoLocal(p, -1)
			p.missing = p.lacksLocal()
			s.countNoLocal(p, 1)
			if p.gone && e.complete() {
				e.pools[kind], s.pools[p.id] = nil, nil
				s.freePools = append(s.freePools, p.id)
			}
		}
	}
	for _, f := range s.dirtyFrontends {
		f.dirty = false
		if f.contest != nil && !s.isContested(f) && !s.isAPIServer(f.key) {
			f.contest = nil
		}
		s.reportLeftOut(f)
		if s.config.relayed(f.key) {
			c.Relays = append(c.Relays, s.relay(f))
		} else if fc, differs := s.frontendChange(f); differs {
			c.Frontends = append(c.Frontends, fc)
			c.Flows = s.passedFlows(c.Flows, &fc)
		}
		if len(f.claims) == 0 {
			delete(s.frontends, f.key)
			s.forgetFrontend(f)
		}
	}
	c.Health = s.healthChanges()
	s.placeBalancers()
	for set := range s.sets {
		c.Sets[set] = s.sets[set].change()
	}
	c.Flows = s.exceptPorts(s.movedFlows(c.Flows, owners))
	for _, e := range changed {
		if e.flows != nil {
			e.flows.firstServed = false
		}
	}
	s.dirtyFrontends, s.heldFrontends = s.heldFrontends, nil
	c.Problems, s.problems = s.problems, nil
	clear(s.contests)
	s.described = true
	return c
}

// Full returns the whole content, as a Change from nothing. The next Change starts
// from it. Health checks that were removed since the last Change or Full are included,
// with Port 0, relays without a Service, and flows of frontends that no Service has any more.
func (s *State) Full() *Update {
	first := !s.described
	c := s.collect(math.MaxInt)
	c.Flows = slices.DeleteFunc(c.Flows, func(f StaleFlows) bool { return s.owner(f.Frontends[0]) != nil })
	c.AllFlows = s.exceptPorts(s.allFlows())
	if first { // the difference from nothing: memory has room for one description, not for two
		return c
	}
	c.Health = slices.DeleteFunc(c.Health, func(h HealthCheck) bool { return h.Port != 0 })
	c.Relays = slices.DeleteFunc(c.Relays, func(r Relay) bool { return r.Service != ServicePort{} })
	for key, f := range s.frontends {
		if s.config.relayed(key) {
			c.Relays = append(c.Relays, s.relay(f))
		}
	}
	for _, svc := range s.services {
		if svc.health != nil && svc.health.reported.Port != 0 {
			c.Health = append(c.Health, svc.health.reported)
		}
	}
	c.Change = Change{} // it is large
	c.Change = *s.Reported()
	return c
}

// Reported returns the content as of the last Change or Full, as a Change from nothing. The kernel has it if
// programming succeeded. Later events are not included. Reported does not modify the State.
func (s *State) Reported() *Change {
	c := &Change{Local: s.reportedLocal, Ranges: s.reportedRanged, Masquerade: s.config.masquerade()}
	c.Frontends = make([]FrontendChange, 0, len(s.frontends))
	for _, f := range s.frontends {
		if f.reported != nil {
			c.Frontends = append(c.Frontends, FrontendChange{New: f.reported})
		}
	}
	c.Pools = make([]PoolChange, 0, len(s.pools))
	for _, p := range s.pools {
		if p != nil && p.reported {
			c.Pools = append(c.Pools, p.full())
		}
	}
	for set := range s.sets {
		c.Sets[set] = s.sets[set].full()
	}
	return c
}
