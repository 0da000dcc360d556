// SPDX-License-Identifier: Apache-2.0

package desired

import "slices"

// StaleFlows describes conntrack entries of UDP and SCTP that send a flow to a
// backend that it should no longer go to. They are to be deleted, so that the next
// packet creates a new entry. TCP connections are left alone: their clients notice.
type StaleFlows struct {
	// Protocol is UDP or SCTP. With TCP, Backends belong to Nodes that were deleted:
	// connections to them are stale whatever their frontend, which is not given.
	Protocol Protocol

	// Frontends are the original destinations of the flows.
	Frontends []FrontendKey

	// Backends are endpoints that no longer serve. Flows to them are stale.
	Backends []Backend

	// Only inverts Backends: it lists all endpoints that serve, and flows that
	// were sent elsewhere, or were not translated, are stale.
	Only bool
}

// flowWatch tracks which endpoints serve existing flows. Whether an endpoint is chosen as a
// backend does not matter: like TCP connections, existing flows keep their endpoint for as
// long as it serves. As in kube-proxy, they do not keep one that is ready without serving
// (publishNotReadyAddresses).
type flowWatch struct {
	serving     int       // number of entries with isServing
	wasServed   bool      // serving was > 0 at the last change
	firstServed bool      // serving became > 0 with this change
	stopped     []Backend // since the last change: no longer serving, or deleted
}

// watchFlows updates the tracking of flows for one entry: those to an endpoint that stops
// serving, or is deleted, are stale, also if no other endpoint serves.
func (e *endpoints) watchFlows(en *entry) {
	serves := !e.gone && en.listed > 0 && en.cond&serving != 0
	switch w := e.flows; {
	case !en.flags.set(isServing, serves):
	case serves:
		w.serving++
	default:
		w.serving--
		w.stopped = append(w.stopped, en.backend)
	}
}

// staleFlows appends the flows that the last change made stale: flows to endpoints that
// stopped serving. When endpoints serve for the first time, all flows to other destinations
// are stale.
func (s *State) staleFlows(all []StaleFlows, e *endpoints) []StaleFlows {
	w := e.flows
	if w == nil {
		return all
	}
	served := w.serving > 0
	stale := StaleFlows{Protocol: e.port.protocol, Backends: w.stopped}
	if w.firstServed = served && !w.wasServed; w.firstServed {
		stale.Only, stale.Backends = true, e.servingBackends()
	}
	w.stopped, w.wasServed = nil, served
	if e.gone || len(stale.Backends) == 0 {
		return all
	}
	if stale.Frontends = s.frontendsOf(e); len(stale.Frontends) == 0 {
		return all
	}
	return append(all, stale)
}

// servingBackends lists the endpoints that serve.
func (e *endpoints) servingBackends() (all []Backend) {
	for i := range e.entries {
		if en := &e.entries[i]; en.flags&isServing != 0 {
			all = append(all, en.backend)
		}
	}
	return all
}

// frontendsOf lists the frontends of a Service port in one family.
func (s *State) frontendsOf(e *endpoints) (keys []FrontendKey) {
	svc := e.port.service
	if svc.spec == nil {
		return nil
	}
	s.eachClaim(svc.spec, []*port{e.port}, func(key FrontendKey, _ AddressKind, port *port) {
		f := s.frontends[key]
		if FamilyOf(key.Addr()) == e.family && !s.config.relayed(key) && f.claims[0].port == port && !slices.Contains(keys, key) {
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
	e := s.frontends[c.New.FrontendKey].claims[0].port.endpoints[FamilyOf(c.New.Addr())]
	if e.flows.serving == 0 || e.flows.firstServed {
		return all
	}
	return append(all, StaleFlows{
		Protocol: c.New.Protocol, Frontends: []FrontendKey{c.New.FrontendKey},
		Only: true, Backends: e.servingBackends(),
	})
}

// allFlows lists, for all frontends, the flows that are not stale: flows to endpoints
// that serve.
func (s *State) allFlows() (all []StaleFlows) {
	for _, svc := range s.services {
		for _, p := range svc.ports {
			for _, e := range p.endpoints {
				if e == nil || e.flows == nil {
					continue
				}
				if keys := s.frontendsOf(e); len(keys) > 0 {
					all = append(all, StaleFlows{Protocol: p.protocol, Frontends: keys, Only: true, Backends: e.servingBackends()})
				}
			}
		}
	}
	return all
}
