// SPDX-License-Identifier: Apache-2.0

package desired

import "net/netip"

// StaleFlows describes conntrack entries of UDP and SCTP that send a flow to a
// backend that it should no longer go to. They are to be deleted, so that the next
// packet creates a new entry. TCP connections are left alone, with two exceptions: their
// clients notice.
type StaleFlows struct {
	// Protocol is UDP or SCTP, or TCP with either Frontends or Backends. With TCP, Backends
	// belong to Nodes that were deleted: connections to them are stale whatever their
	// frontend. Connections to Frontends are stale if their SYN was not translated and has
	// no answer yet: it was sent while rules were missing, and its repetitions would not be
	// translated either.
	Protocol Protocol

	// Frontends are the original destinations of the flows. A NodePort has one for each
	// address that serves it.
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
		if FamilyOf(key.Addr()) == e.family && !s.config.relayed(key) && f.claims[0].port == port {
			keys = append(keys, subtract(s.destinations(f), keys)...)
		}
	})
	return keys
}

// newFrontendFlows appends the flows that a new frontend, or a frontend with another
// pool, makes stale: flows to endpoints other than its own. In place of a frontend that was
// deleted, a NodePort may have its address.
func (s *State) newFrontendFlows(all []StaleFlows, c FrontendChange) []StaleFlows {
	switch {
	case c.New == nil:
		if n := s.nodePortAt(c.Key()); n != nil {
			return s.otherFlows(all, n, c.Key())
		}
		return all
	case c.Old != nil && c.Old.Pool == c.New.Pool && c.Old.LocalPool == c.New.LocalPool:
		return all
	}
	f := s.frontends[c.Key()]
	return s.otherFlows(all, f, s.destinations(f)...)
}

// newAddressFlows appends the flows to NodePorts that new addresses of the node make stale.
func (s *State) newAddressFlows(all []StaleFlows, added []netip.Addr) []StaleFlows {
	if len(added) == 0 {
		return all
	}
	s.eachNodePort(func(f *frontend) {
		if to := s.destinationsAt(f, added); f.key.Protocol != TCP {
			all = s.otherFlows(all, f, to...)
		}
	})
	return all
}

// otherFlows appends the flows with some destinations to endpoints other than a frontend's.
func (s *State) otherFlows(all []StaleFlows, f *frontend, to ...FrontendKey) []StaleFlows {
	e := f.claims[0].port.endpoints[FamilyOf(f.key.Addr())]
	if e.flows == nil || e.flows.serving == 0 || e.flows.firstServed || len(to) == 0 {
		return all
	}
	return append(all, StaleFlows{Protocol: f.key.Protocol, Frontends: to, Only: true, Backends: e.servingBackends()})
}

// allFlows lists, for all frontends, the flows that are not stale: flows to endpoints
// that serve. Of TCP, it lists the frontends, without NodePorts: the node itself answers a SYN
// to its own address.
func (s *State) allFlows() (all []StaleFlows) {
	tcp := StaleFlows{Protocol: TCP}
	for key := range s.frontends {
		if key.Protocol == TCP && !key.OnNode() && !s.config.relayed(key) {
			tcp.Frontends = append(tcp.Frontends, key)
		}
	}
	if len(tcp.Frontends) > 0 {
		all = append(all, tcp)
	}
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
