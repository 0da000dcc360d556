// SPDX-License-Identifier: Apache-2.0

package desired

import "slices"

// This file merges the endpoints of slices into pools.

// portNumber is the port number that the slice's endpoints have for a Service
// port, or 0. A Service port and a slice port match by name and protocol.
func (sl *slice) portNumber(p *port) uint16 {
	for _, sp := range sl.ports {
		if sp.name == p.portID.name && sp.protocol == p.protocol {
			return sp.number
		}
	}
	return 0
}

// replaceSlice replaces one version of a slice by another in all pools and health
// checks of the Service. Either version may be nil.
func (svc *service) replaceSlice(s *State, from, to *slice) {
	for _, p := range svc.ports {
		for pool := range p.eachPool {
			s.moveEndpoints(pool, from, to)
		}
	}
	s.moveHealth(svc, from, to)
}

// moveEndpoints is replaceSlice for one pool.
func (s *State) moveEndpoints(p *pool, from, to *slice) {
	var fromPort, toPort uint16
	var fromEndpoints, toEndpoints []sliceEndpoint
	if from != nil && from.family == p.family {
		fromPort, fromEndpoints = from.portNumber(p.port), from.endpoints
	}
	if to != nil && to.family == p.family {
		toPort, toEndpoints = to.portNumber(p.port), to.endpoints
	}
	remove := func(e sliceEndpoint) { p.contribute(Backend{e.ip, fromPort}, e.cond, -1) }
	add := func(e sliceEndpoint) { p.contribute(Backend{e.ip, toPort}, e.cond, 1) }
	switch {
	case fromPort == toPort && toPort != 0:
		difference(fromEndpoints, toEndpoints, remove, add)
	default:
		if fromPort != 0 {
			difference(fromEndpoints, nil, remove, add)
		}
		if toPort != 0 {
			p.entries = slices.Grow(p.entries, len(toEndpoints))
			p.touched = slices.Grow(p.touched, len(toEndpoints))
			difference(nil, toEndpoints, remove, add)
		}
	}
	if len(p.touched) > 0 {
		s.dirtyPool(p)
	}
}
