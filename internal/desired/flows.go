// SPDX-License-Identifier: Apache-2.0

package desired

import "slices"

// StaleFlows describes conntrack entries of UDP and SCTP that send a flow to a
// backend that it should no longer go to. They are to be deleted, so that the next
// packet creates a new entry. TCP connections are left alone: their clients notice.
type StaleFlows struct {
	// Protocol is UDP or SCTP.
	Protocol Protocol

	// Frontends are the original destinations of the flows.
	Frontends []FrontendKey

	// Backends are endpoints that no longer serve. Flows to them are stale.
	Backends []Backend

	// Only inverts Backends: it lists all endpoints that serve, and flows that
	// were sent elsewhere, or were not translated, are stale.
	Only bool
}

// flowWatch tracks which endpoints of a pool serve existing flows. Whether an
// endpoint is chosen as a backend does not matter: like TCP connections, existing
// flows keep their endpoint for as long as it serves.
type flowWatch struct {
	serving     int       // number of entries with isServing
	wasServed   bool      // serving was > 0 at the last change
	firstServed bool      // serving became > 0 with this change
	stopped     []Backend // since the last change: no longer serving, or deleted
}

// watchesFlows reports whether the pool of a scope is the one that tracks the flows
// of its Service port and family.
func (p *port) watchesFlows(s Scope, others [scopes]bool) bool {
	return p.protocol != TCP && (s == Cluster || !others[Cluster])
}

// setWatch starts or stops the tracking of flows. Entries that the pool has at the
// start are recorded without a report: until then, another pool tracked their flows.
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
		if on && p.reported {
			p.watchFlows(e)
		}
	}
	if on {
		p.flows.wasServed = p.flows.serving > 0
	}
}

// watchFlows updates the tracking of flows for one entry: those to an endpoint that stops
// serving, or is deleted, are stale, also if no other endpoint serves.
func (p *pool) watchFlows(e *entry) {
	w := p.flows
	was := e.flags&isServing != 0
	now := !p.gone && e.listed > 0 && e.cond&serving != 0
	switch {
	case now && !was:
		w.serving++
	case was && !now:
		w.serving--
		w.stopped = append(w.stopped, e.backend)
	}
	e.flags = e.flags.with(isServing, now)
}

// staleFlows appends the flows that the change of a pool makes stale: flows to endpoints
// that stopped serving. When endpoints serve for the first time, all flows to other
// destinations are stale.
func (s *State) staleFlows(all []StaleFlows, p *pool) []StaleFlows {
	w := p.flows
	if w == nil {
		return all
	}
	served := w.serving > 0
	stale := StaleFlows{Protocol: p.port.protocol, Backends: w.stopped}
	if w.firstServed = served && !w.wasServed; w.firstServed {
		stale.Only, stale.Backends = true, p.servingBackends()
	}
	w.stopped, w.wasServed = nil, served
	if p.gone || len(stale.Backends) == 0 {
		return all
	}
	if stale.Frontends = s.frontendsOf(p); len(stale.Frontends) == 0 {
		return all
	}
	return append(all, stale)
}

// servingBackends lists the endpoints that serve.
func (p *pool) servingBackends() (all []Backend) {
	for i := range p.entries {
		if e := &p.entries[i]; e.flags&isServing != 0 {
			all = append(all, e.backend)
		}
	}
	return all
}

// frontendsOf lists the frontends of a pool's Service port in the pool's family.
func (s *State) frontendsOf(p *pool) (keys []FrontendKey) {
	svc := p.port.service
	if svc.spec == nil {
		return nil
	}
	s.eachClaim(svc.spec, []*port{p.port}, func(key FrontendKey, _ AddressKind, port *port) {
		f := s.frontends[key]
		if FamilyOf(key.Addr()) == p.family && !s.config.relayed(key) && f.claims[0].port == port && !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	})
	return keys
}

// newFrontendFlows appends the flows that a new frontend, or a frontend with another
// pool, makes stale: flows to endpoints other than its own.
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

// allFlows lists, for all frontends, the flows that are not stale: flows to endpoints
// that serve.
func (s *State) allFlows() (all []StaleFlows) {
	for _, p := range s.pools {
		if p == nil || p.flows == nil {
			continue
		}
		stale := StaleFlows{Protocol: p.port.protocol, Frontends: s.frontendsOf(p), Only: true, Backends: p.servingBackends()}
		if len(stale.Frontends) > 0 {
			all = append(all, stale)
		}
	}
	return all
}
