// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"maps"
	"net/netip"
	"slices"
)

// StaleFlows describes conntrack entries of UDP and SCTP that send a flow to a backend that it should no longer go to.
// They are to be deleted, so that the next packet creates a new entry. TCP connections are left alone, with three
// exceptions: their clients notice.
type StaleFlows struct {
	// Protocol is UDP or SCTP, or TCP. With TCP, Backends alone belong to Nodes that were deleted: connections to them
	// are stale whatever their frontend. Connections to Frontends alone are stale if their SYN was not translated and
	// has no answer yet: it was sent while rules were missing, and its repetitions would not be translated either.
	// Connections to Frontends that were translated to Backends are stale while their SYN has no answer: the Backends
	// do not answer.
	Protocol Protocol

	// Frontends are the original destinations of the flows. A NodePort has one for each address that serves it. A flow
	// to a port in a range goes to an endpoint's same port, and stays if the port is among Ports.
	Frontends []FrontendKey

	// Ports are destinations in ranges of Frontends that other frontends serve.
	Ports []FrontendKey

	// Backends are endpoints that no longer serve. Flows to them are stale.
	Backends []Backend

	// Only inverts Backends: it lists all endpoints that serve, and flows that
	// were sent elsewhere, or were not translated, are stale. Frontends that no Service has
	// any more are their own Backends, so that only translated flows to them are stale.
	Only bool
}

// flowWatch tracks which endpoints serve existing flows. Whether an endpoint is chosen as a backend does not matter:
// like TCP connections, existing flows keep their endpoint for as long as it serves. As in kube-proxy, they do not keep
// one that is ready without serving (publishNotReadyAddresses).
type flowWatch struct {
	serving     int       // number of entries with isServing
	wasServed   bool      // serving was > 0 at the last change
	firstServed bool      // serving became > 0 with this change
	stopped     []Backend // since the last change: no longer serving, or deleted
}

// watchFlows updates the tracking of flows for one entry: those to an endpoint that stops serving, or is deleted, are
// stale, also if no other endpoint serves. An endpoint without serving that is ready gets flows for as long as a pool
// has it. former are the flags before the pools were updated.
func (e *endpoints) watchFlows(en *entry, former entryFlags) {
	const getsFlows = isServing | inPools
	w, serves := e.flows, !e.gone && en.listed > 0 && en.cond&serving != 0
	stopped := en.flags.set(isServing, serves) && !serves
	switch {
	case stopped:
		w.serving--
	case serves && former&isServing == 0:
		w.serving++
	}
	if stopped || former&getsFlows != 0 && en.flags&getsFlows == 0 {
		w.stopped = append(w.stopped, en.backend)
	}
}

// staleFlows appends the flows that the last change made stale: flows to endpoints that stopped serving. When endpoints
// serve for the first time, all flows to other destinations are stale.
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
	has := map[FrontendKey]bool{}
	s.eachClaim(svc.spec, []*port{e.port}, func(key FrontendKey, _ AddressKind, port *port) {
		f := s.frontends[key]
		if FamilyOf(key.Addr()) == e.family && !s.config.relayed(key) && f.claims[0].port == port && s.serves(f) {
			for _, to := range s.destinations(f) {
				if !has[to] {
					has[to], keys = true, append(keys, to)
				}
			}
		}
	})
	return keys
}

// owner returns the endpoints that serve a destination of UDP or SCTP, by the last report, or nil.
func (s *State) owner(to FrontendKey) *endpoints {
	f, ip := s.frontends[to], to.Addr()
	if f == nil || f.reported == nil {
		if f = s.frontends[to.NodePort()]; !s.sets[NodeAddresses].all[Address(ip)].reported || s.sets[ClusterIPs].all[Address(ip)].reported {
			return nil
		}
	}
	if f == nil || f.reported == nil {
		return nil
	}
	return s.pools[f.reported.Pool].of
}

// Serves reports whether a Service has a destination of UDP or SCTP, by the last report.
func (s *State) Serves(to FrontendKey) bool { return s.owner(to) != nil }

// formerOwners returns the owners of the destinations that may have others by the next report.
func (s *State) formerOwners() map[FrontendKey]*endpoints {
	if len(s.dirtyFrontends)+len(s.sets[NodeAddresses].dirty)+len(s.sets[ClusterIPs].dirty) == 0 {
		return nil
	}
	all := map[FrontendKey]*endpoints{}
	at := func(f *frontend, ip netip.Addr) {
		if key := f.key.At(ip); FamilyOf(ip) == FamilyOf(f.key.Addr()) {
			all[key] = s.owner(key)
		}
	}
	for _, f := range s.dirtyFrontends {
		switch {
		case f.key.Protocol == TCP || s.config.relayed(f.key):
		case f.key.OnNode():
			for m := range s.sets[NodeAddresses].all {
				at(f, m.Addr)
			}
		default:
			at(f, f.key.Addr())
		}
	}
	var addresses []netip.Addr
	for _, m := range slices.Concat(s.sets[NodeAddresses].dirty, s.sets[ClusterIPs].dirty) {
		if _, ok := s.sets[NodeAddresses].all[m]; ok {
			addresses = append(addresses, m.Addr)
		}
	}
	if len(addresses) == 0 {
		return all
	}
	s.eachNodePort(func(f *frontend) {
		for _, ip := range addresses {
			if f.key.Protocol != TCP {
				at(f, ip)
			}
		}
	})
	return all
}

// movedFlows appends the flows that are stale because their destination has another owner than
// before: all that do not go to an endpoint of the new one.
func (s *State) movedFlows(all []StaleFlows, former map[FrontendKey]*endpoints) []StaleFlows {
	if len(former) == 0 {
		return all
	}
	moved, ended := map[*endpoints][]FrontendKey{}, map[Protocol]StaleFlows{}
	for to, before := range former {
		switch now := s.owner(to); {
		case now == before:
		case now != nil:
			moved[now] = append(moved[now], to)
		default:
			e := ended[to.Protocol]
			itself := NewBackend(to.AddrPort)
			if to.IsRange() {
				itself.port = 0
			}
			ended[to.Protocol] = StaleFlows{Protocol: to.Protocol, Frontends: append(e.Frontends, to), Backends: append(e.Backends, itself), Only: true}
		}
	}
	for e, to := range moved {
		if !e.flows.firstServed { // staleFlows has them
			all = append(all, StaleFlows{Protocol: e.port.protocol, Frontends: to, Backends: e.servingBackends(), Only: true})
		}
	}
	return slices.AppendSeq(all, maps.Values(ended))
}

// allFlows lists, for all frontends, the flows that are not stale: flows to endpoints that serve. Of TCP, it lists the
// frontends, without NodePorts: the node itself answers a SYN to its own address.
func (s *State) allFlows() (all []StaleFlows) {
	tcp := StaleFlows{Protocol: TCP, Frontends: make([]FrontendKey, 0, len(s.frontends))}
	for key, f := range s.frontends {
		if key.Protocol == TCP && !key.OnNode() && !s.config.relayed(key) && s.serves(f) {
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
