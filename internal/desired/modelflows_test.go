// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"fmt"
	"maps"
	"slices"
)

// modelFlows stands for conntrack's entries of UDP and SCTP. Clients send to each destination
// all the time, so that there is a flow to each backend that a destination has had, until the
// flow is stale. A flow to a destination that is no frontend goes to the destination itself.
type modelFlows struct {
	destinations map[FrontendKey]bool
	flows        map[modelFlow]ServicePort // with the Service port if the backend serves
	pending      []StaleFlows              // of changes that the kernel refused
}

type modelFlow struct {
	to      FrontendKey
	backend Backend
}

func newModelFlows() *modelFlows {
	return &modelFlows{destinations: map[FrontendKey]bool{}, flows: map[modelFlow]ServicePort{}}
}

// owner returns the frontend that serves a destination.
func (m *model) owner(to FrontendKey) (Frontend, bool) {
	if f, ok := m.frontends[to]; ok {
		return f, true
	}
	f, ok := m.frontends[to.NodePort()]
	return f, ok && m.sets[NodeAddresses][Address(to.Addr())] && !m.sets[ClusterIPs][Address(to.Addr())]
}

// check deletes the flows that an update makes stale, after the model has applied it. The error
// is about a flow that remains and should not, or the reverse.
func (f *modelFlows) check(s *State, m *model, u *Update) error {
	stale, refused := slices.Concat(f.pending, u.Flows, u.AllFlows), len(f.pending) > 0
	f.pending = nil
	former := maps.Clone(f.flows)
	f.delete(stale)
	for flow := range f.flows {
		owner, owned := m.owner(flow.to)
		switch {
		case !owned && flow.backend == itself(flow.to):
		case !owned:
			return fmt.Errorf("a flow to %s stays with %s, but there is no such frontend: %v", flow.to, flow.backend, stale)
		case !servesIn(s, owner, flow.backend) && !m.uses(s, owner, flow.backend):
			return fmt.Errorf("a flow to %s stays with %s, which is no endpoint of %s: %v", flow.to, flow.backend, owner.Service, stale)
		}
	}
	for flow, by := range former {
		owner, owned := m.owner(flow.to)
		if _, stays := f.flows[flow]; stays {
			continue
		}
		if !owned && by == (ServicePort{}) && flow.backend == itself(flow.to) {
			return fmt.Errorf("a flow to %s, which is no frontend, is deleted: %v", flow.to, stale)
		}
		ejected := s.silent[owner.Service.Namespace][Target{flow.to.Protocol, flow.backend}] > 0 || refused // it may have been, then
		if owned && by == owner.Service && servesIn(s, owner, flow.backend) && !ejected {
			return fmt.Errorf("a flow to %s is deleted, although %s serves it for %s as before: %v", flow.to, flow.backend, by, stale)
		}
	}
	f.send(s, m)
	return nil
}

// delete deletes stale flows, as package conntrack does.
func (f *modelFlows) delete(all []StaleFlows) {
	only, removed := map[FrontendKey]map[Backend]bool{}, map[modelFlow]bool{}
	for _, stale := range all {
		backends := map[Backend]bool{}
		for _, b := range stale.Backends {
			backends[b] = true
		}
		for _, to := range stale.Frontends {
			if stale.Only {
				only[to] = backends
				maps.DeleteFunc(removed, func(flow modelFlow, _ bool) bool { return flow.to == to })
				continue
			}
			for b := range backends {
				removed[modelFlow{to, b}] = true
			}
		}
	}
	maps.DeleteFunc(f.flows, func(flow modelFlow, _ ServicePort) bool {
		serve, is := only[flow.to]
		return removed[flow] || is && !serve[flow.backend]
	})
}

// send begins the flows that clients get with a content.
func (f *modelFlows) send(s *State, m *model) {
	for key := range m.frontends {
		switch {
		case key.Protocol == TCP:
		case key.OnNode():
			for member := range m.sets[NodeAddresses] {
				ip := member.Addr
				if FamilyOf(ip) == FamilyOf(key.Addr()) {
					f.destinations[key.At(ip)] = true
				}
			}
		default:
			f.destinations[key] = true
		}
	}
	for to := range f.destinations {
		owner, owned := m.owner(to)
		if !owned {
			f.flows[modelFlow{to, itself(to)}] = ServicePort{}
			continue
		}
		for _, id := range owner.Pools() {
			for b := range m.pools[id].backends {
				f.flows[modelFlow{to, b}] = ServicePort{}
			}
		}
	}
	for flow := range f.flows {
		f.flows[flow] = ServicePort{}
		if owner, owned := m.owner(flow.to); owned && servesIn(s, owner, flow.backend) {
			f.flows[flow] = owner.Service
		}
	}
}

// uses reports whether a pool of a frontend's Service port sends new flows to a backend, at this or
// another frontend: traffic policies move no flows.
func (m *model) uses(s *State, f Frontend, b Backend) bool {
	for _, p := range endpointsOf(s, f).pools {
		if p != nil && p.reported && m.pools[p.id].backends[b] {
			return true
		}
	}
	return false
}

// servesIn reports whether slices said, at the last change of the endpoints, that an endpoint of a frontend's Service port serves.
func servesIn(s *State, f Frontend, b Backend) bool {
	e := endpointsOf(s, f)
	i := e.find(b)
	if e.dirty { // its changes are postponed
		return i >= 0 && e.entries[i].flags&isServing != 0
	}
	return i >= 0 && e.entries[i].listed > 0 && e.entries[i].cond&serving != 0
}

// endpointsOf returns the endpoints of a frontend's Service port.
func endpointsOf(s *State, f Frontend) *endpoints { return s.pools[f.Pool].of }
