// SPDX-License-Identifier: Apache-2.0

package desired

import "k8s.io/apimachinery/pkg/types"

// HealthCheck is what a load balancer that asks this node about a Service
// (spec.healthCheckNodePort) is to learn. One that the State told before is
// replaced by the next one of the same Service.
type HealthCheck struct {
	Service types.NamespacedName

	// Port is where to answer; 0 when the Service has no such port any more.
	Port uint16

	// Serves says in which families the Service has addresses, and
	// LocalEndpoints how many of its endpoints, counted by address, are
	// ready and on this node.
	Serves         [families]bool
	LocalEndpoints [families]int
}

// healthState is what a Service's health checks rest on. It is kept only while
// the Service has a port for them, or had when it was last told.
type healthState struct {
	told  HealthCheck
	dirty bool
	local [families]map[ipBytes]int // ready endpoints on this node, and in how many slices each is
}

// setHealth takes note of a Service's new spec.
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

// moveHealth takes the step from one version of a slice to another.
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
	// Endpoints without a port are nobody's.
	if from != nil && len(from.ports) == 0 {
		from = nil
	}
	if to != nil && len(to.ports) == 0 {
		to = nil
	}
	switch {
	case from != nil && to != nil && from.family == to.family:
		difference(from.endpoints, to.endpoints, add(from.family, -1), add(to.family, 1))
	default:
		if from != nil {
			difference(from.endpoints, nil, add(from.family, -1), nil)
		}
		if to != nil {
			difference(nil, to.endpoints, nil, add(to.family, 1))
		}
	}
	s.dirtyHealth(svc)
}

func (s *State) dirtyHealth(svc *service) {
	if !svc.health.dirty {
		svc.health.dirty = true
		s.dirtyHealths = append(s.dirtyHealths, svc)
	}
}

// healthCheck is what is to be told of a Service now.
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

// useHealthPort counts a health check's users of its port. No two Services should have
// the same, but they may.
func (s *State) useHealthPort(h HealthCheck, n int) {
	for f, serves := range h.Serves {
		if serves && h.Port != 0 {
			s.healthPorts.use(HealthPort{Family(f), h.Port}, n)
		}
	}
}

// healthChanges are the health checks that differ from what was told.
func (s *State) healthChanges() (out []HealthCheck) {
	for _, svc := range s.dirtyHealths {
		svc.health.dirty = false
		now, was := svc.healthCheck(), svc.health.told
		svc.health.told = now
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
