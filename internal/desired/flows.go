// SPDX-License-Identifier: Apache-2.0

package desired

import "slices"

// StaleFlows are entries of conntrack that keep a flow without connections (UDP)
// or one that is hard to break (SCTP) from where its packets would go now. They
// are to be deleted, so that the next packet makes a new one. TCP is left alone:
// its clients notice.
type StaleFlows struct {
	// Protocol is UDP or SCTP.
	Protocol Protocol

	// Frontends are the original destinations of the flows.
	Frontends []FrontendKey

	// Backends are endpoints that no longer serve: flows that were sent to
	// one of them are stale.
	Backends []Backend

	// Only turns the meaning of Backends around: it lists all that serve,
	// and flows that were sent anywhere else, or nowhere, are stale.
	Only bool
}

// flowWatch is what a pool knows about flows to its endpoints. Which of them are
// chosen as backends does not matter to flows that exist: like connections of TCP,
// they stay where they are for as long as their endpoint serves.
type flowWatch struct {
	serving       int       // entries that are told as isServing
	wasServed     bool      // there were some at the last change
	firstServed   bool      // this change's are the first
	gone, stopped []Backend // which are no more, and which only do not serve any more
}

// watchesFlows says whether a pool is the one of its Service port and family
// that watches over flows.
func (p *port) watchesFlows(s Scope, others [scopes]bool) bool {
	return p.protocol != TCP && (s == Cluster || !others[Cluster])
}

// setWatch has a pool watch over flows, or not any more. What it has is looked
// at when it starts to, and not told: those flows were another pool's before.
func (p *pool) setWatch(on bool) {
	if (p.flows != nil) == on {
		return
	}
	p.flows = nil
	if on {
		p.flows = &flowWatch{}
	}
	for i := range p.entries {
		e := &p.entries[i]
		e.flags = e.flags.with(isServing, false)
		if on && p.told {
			p.watchFlows(e)
		}
	}
	if on {
		p.flows.wasServed = p.flows.serving > 0
	}
}

// watchFlows brings what flows are told by up to date for one entry.
func (p *pool) watchFlows(e *entry) {
	w := p.flows
	now := !p.gone && e.slices > 0 && e.cond&serving != 0
	was := e.flags&isServing != 0
	switch {
	case now && !was:
		w.serving++
	case !now && was:
		w.serving--
	}
	switch {
	case e.slices == 0 && e.flags&(isServing|hadFlows) != 0:
		w.gone = append(w.gone, e.backend)
	case !now && was:
		w.stopped = append(w.stopped, e.backend)
	}
	e.flags = e.flags.with(isServing, now).with(hadFlows, was || e.flags&hadFlows != 0)
}

// staleFlows appends the flows that a pool's change makes stale: those to
// endpoints that are gone, and those to endpoints that do not serve when others
// do. When some serve for the first time, no flow to any other place is good.
func (s *State) staleFlows(all []StaleFlows, p *pool) []StaleFlows {
	w := p.flows
	if w == nil {
		return all
	}
	served := w.serving > 0
	stale := StaleFlows{Protocol: p.port.protocol, Backends: w.gone}
	switch w.firstServed = served && !w.wasServed; {
	case w.firstServed:
		stale.Only, stale.Backends = true, p.servingBackends()
	case served:
		stale.Backends = append(stale.Backends, w.stopped...)
	}
	w.gone, w.stopped, w.wasServed = nil, nil, served
	if p.gone || len(stale.Backends) == 0 {
		return all
	}
	if stale.Frontends = s.frontendsOf(p); len(stale.Frontends) == 0 {
		return all
	}
	return append(all, stale)
}

// servingBackends are those to which flows are good.
func (p *pool) servingBackends() (all []Backend) {
	for i := range p.entries {
		if e := &p.entries[i]; e.flags&isServing != 0 {
			all = append(all, e.backend)
		}
	}
	return all
}

// frontendsOf are the frontends that lead to the endpoints of a pool's Service
// port in its family.
func (s *State) frontendsOf(p *pool) (keys []FrontendKey) {
	svc := p.port.service
	if svc.spec == nil {
		return nil
	}
	s.eachClaim(svc.spec, []*port{p.port}, func(key FrontendKey, _ AddressKind, port *port) {
		f := s.frontends[key]
		if FamilyOf(key.Addr()) == p.family && f.claims[0].port == port && !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	})
	return keys
}

// newFrontendFlows appends the flows that a frontend makes stale that is new, or
// leads somewhere else: those from before.
func (s *State) newFrontendFlows(all []StaleFlows, c FrontendChange) []StaleFlows {
	if c.New == nil || c.New.Protocol == TCP || c.Old != nil && c.Old.Pool == c.New.Pool && c.Old.LocalPool == c.New.LocalPool {
		return all
	}
	port := s.frontends[c.New.FrontendKey].claims[0].port
	for pool := range port.eachPool {
		w := pool.flows
		if w != nil && pool.family == FamilyOf(c.New.Addr()) && w.serving > 0 && !w.firstServed {
			all = append(all, StaleFlows{
				Protocol: c.New.Protocol, Frontends: []FrontendKey{c.New.FrontendKey},
				Only: true, Backends: pool.servingBackends(),
			})
		}
	}
	return all
}

// allFlows lists for every frontend which flows are good: those to endpoints that
// serve or, where none does, to those that are there.
func (s *State) allFlows() (all []StaleFlows) {
	for _, p := range s.pools {
		if p == nil || p.flows == nil {
			continue
		}
		stale := StaleFlows{Protocol: p.port.protocol, Frontends: s.frontendsOf(p), Only: true, Backends: p.servingBackends()}
		if p.flows.serving == 0 {
			for i := range p.entries {
				stale.Backends = append(stale.Backends, p.entries[i].backend)
			}
		}
		if len(stale.Frontends) > 0 {
			all = append(all, stale)
		}
	}
	return all
}
