// SPDX-License-Identifier: Apache-2.0

package desired

import "slices"

// This file merges the endpoints of slices into pools.

// replaceSlice replaces one version of a slice by another in all pools and the health check
// of the Service, after svc.slices has been updated. Either version may be nil.
func (svc *service) replaceSlice(s *State, from, to *slice) {
	for _, p := range svc.ports {
		for pool := range p.eachPool {
			s.moveEndpoints(pool, from, to)
		}
	}
	s.setHealth(svc)
}

// moveEndpoints is replaceSlice for one pool.
func (s *State) moveEndpoints(p *pool, from, to *slice) {
	fromPort, fromEndpoints := from.endpointsFor(p)
	toPort, toEndpoints := to.endpointsFor(p)
	remove := func(e sliceEndpoint) { p.contribute(Backend{e.ip, fromPort}, e.cond, -1) }
	add := func(e sliceEndpoint) { p.contribute(Backend{e.ip, toPort}, e.cond, 1) }
	if fromPort == toPort {
		difference(fromEndpoints, toEndpoints, remove, add)
	} else {
		difference(fromEndpoints, nil, remove, nil)
		p.entries = slices.Grow(p.entries, len(toEndpoints))
		p.touched = slices.Grow(p.touched, len(toEndpoints))
		difference(nil, toEndpoints, nil, add)
	}
	if len(p.touched) > 0 {
		s.dirtyPool(p)
	}
}

// endpointsFor returns the slice's endpoints for a pool, and their port number. A Service
// port and a slice port match by name and protocol.
func (sl *slice) endpointsFor(p *pool) (port uint16, all []sliceEndpoint) {
	if sl == nil || sl.family != p.family {
		return 0, nil
	}
	for _, sp := range sl.ports {
		if sp.name == p.port.portID.name && sp.protocol == p.port.protocol {
			return sp.number, sl.endpoints
		}
	}
	return 0, nil
}
