// SPDX-License-Identifier: Apache-2.0

package desired

import "k8s.io/apimachinery/pkg/types"

// HealthCheck is the answer to a load balancer that asks this node about a Service
// (spec.healthCheckNodePort). It replaces the previous HealthCheck of the same
// Service.
type HealthCheck struct {
	Service types.NamespacedName

	// Port is where to answer; 0 if the Service no longer has a health check.
	Port uint16

	// Serves says in which families the Service has addresses. LocalEndpoints is
	// the number of addresses of ready endpoints on this node.
	Serves         [families]bool
	LocalEndpoints [families]int
}

// healthState is the input of a Service's health check. It exists while the Service
// has a health check port, or had one at the last report.
type healthState struct {
	reported HealthCheck
	dirty    bool
	local    [families]map[ipBytes]int // how often slices list each ready endpoint of this node
}

// setHealth updates the health state for a Service's new spec.
func (s *State) setHealth(svc *service) {
	wanted := svc.spec != nil && svc.spec.healthPort != 0
	if !wanted && svc.health == nil {
		return
	}
	if wanted && svc.health == nil {
		svc.health = &healthState{local: [families]map[ipBytes]int{{}, {}}}
		for _, sl := range svc.slices {
			s.moveHealth(svc, nil, sl)
		}
	}
	s.dirtyHealth(svc)
}

// moveHealth replaces one version of a slice by another in the health state.
func (s *State) moveHealth(svc *service, from, to *slice) {
	h := svc.health
	if h == nil {
		return
	}
	add := func(f Family, n int) func(sliceEndpoint) {
		return func(e sliceEndpoint) {
			if e.cond&(ready|local) != ready|local {
				return
			}
			if h.local[f][e.ip] += n; h.local[f][e.ip] == 0 {
				delete(h.local[f], e.ip)
			}
		}
	}
	for _, f := range []Family{IPv4, IPv6} {
		difference(from.healthEndpoints(f), to.healthEndpoints(f), add(f, -1), add(f, 1))
	}
	s.dirtyHealth(svc)
}

// healthEndpoints returns the endpoints of a family. A slice without ports has none for any
// Service port.
func (sl *slice) healthEndpoints(f Family) []sliceEndpoint {
	if sl == nil || len(sl.ports) == 0 || sl.family != f {
		return nil
	}
	return sl.endpoints
}

func (s *State) dirtyHealth(svc *service) {
	if !svc.health.dirty {
		svc.health.dirty = true
		s.dirtyHealths = append(s.dirtyHealths, svc)
	}
}

// healthCheck computes the current HealthCheck of a Service.
func (svc *service) healthCheck() HealthCheck {
	h := HealthCheck{Service: svc.name}
	if svc.spec == nil || svc.spec.healthPort == 0 {
		return h
	}
	h.Port = svc.spec.healthPort
	for f := range Family(families) {
		if h.Serves[f] = svc.spec.has(f); h.Serves[f] {
			h.LocalEndpoints[f] = len(svc.health.local[f])
		}
	}
	return h
}

// useHealthPort adds n users of a health check's port. Several Services may have the
// same port, although they should not.
func (s *State) useHealthPort(h HealthCheck, n int) {
	for f, serves := range h.Serves {
		if serves && h.Port != 0 {
			s.healthPorts.use(HealthPort{Family(f), h.Port}, n)
		}
	}
}

// healthChanges returns the health checks that differ from the last report.
func (s *State) healthChanges() (out []HealthCheck) {
	for _, svc := range s.dirtyHealths {
		svc.health.dirty = false
		now, was := svc.healthCheck(), svc.health.reported
		svc.health.reported = now
		s.useHealthPort(was, -1)
		s.useHealthPort(now, 1)
		if now.Port == 0 {
			svc.health = nil
		}
		if was.Port == 0 && now.Port == 0 || now == was {
			continue
		}
		out = append(out, now)
	}
	s.dirtyHealths = nil
	return out
}
