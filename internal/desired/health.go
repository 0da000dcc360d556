// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"maps"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// HealthCheck is the answer to a load balancer that asks this node about a Service (spec.healthCheckNodePort). It
// replaces the previous HealthCheck of the same Service.
type HealthCheck struct {
	Service types.NamespacedName
	Created int64 // seconds since 1970; of two Services with one port, the older one has it

	// Port is where to answer; 0 if the Service no longer has a health check.
	Port uint16

	// Serves says in which families the Service has addresses. LocalEndpoints is
	// the number of addresses of ready endpoints on this node.
	Serves         [families]bool
	LocalEndpoints [families]int
}

// healthState exists while a Service has a health check port, or had one at the last report.
type healthState struct {
	reported HealthCheck
	dirty    bool

	listed map[ipBytes]int32 // how often slices list addresses that are ready and local
	local  [families]int     // number of them
}

// count adds (n = 1) or removes (n = -1) what a slice lists.
func (h *healthState) count(sl *slice, n int32) {
	if h == nil || sl == nil || sl.weight == 0 || len(sl.ports) == 0 {
		return // a slice without ports has no endpoints for any Service port, and one of weight 0 none that is ready
	}
	for _, e := range sl.endpoints {
		if e.cond&(ready|local) != ready|local {
			continue
		}
		former := h.listed[e.ip]
		if h.listed[e.ip] += n; former == 0 {
			h.local[sl.family]++
		} else if former+n == 0 {
			delete(h.listed, e.ip)
			h.local[sl.family]--
		}
	}
}

// setHealth updates the health state after a Service's spec or one of its slices changed.
func (s *State) setHealth(svc *service) {
	if svc.health == nil {
		if svc.spec == nil || svc.spec.healthPort == 0 {
			return
		}
		svc.health = &healthState{listed: map[ipBytes]int32{}}
		for _, sl := range svc.slices {
			svc.health.count(sl, 1)
		}
	}
	if !svc.health.dirty {
		svc.health.dirty = true
		s.dirtyHealths = append(s.dirtyHealths, svc)
	}
}

// healthCheck returns the current HealthCheck of a Service.
func (svc *service) healthCheck() HealthCheck {
	h := HealthCheck{Service: svc.name}
	if svc.spec == nil || svc.spec.healthPort == 0 {
		return h
	}
	h.Port, h.Created = svc.spec.healthPort, svc.spec.created
	for f := range Family(families) {
		if h.Serves[f] = svc.spec.has(f); h.Serves[f] {
			h.LocalEndpoints[f] = svc.health.local[f]
		}
	}
	return h
}

// useHealthPort adds n users of a health check's port. Several Services may have the
// same port, although they should not.
func (s *State) useHealthPort(h HealthCheck, n int) {
	for f, serves := range h.Serves {
		if serves && h.Port != 0 {
			s.sets[HealthPorts].use(PortOf(Family(f), TCP, h.Port), n)
		}
	}
}

// healthChanges returns the health checks that differ from the last report.
func (s *State) healthChanges() (out []HealthCheck) {
	all := s.dirtyHealths
	s.dirtyHealths = nil
	for _, svc := range all {
		if s.postponed[svc.name.Namespace] { // a load balancer would send connections before there is a backend
			s.dirtyHealths = append(s.dirtyHealths, svc)
			continue
		}
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
	return out
}

// HealthNeeds reports whether a Service's health check on this node needs a pod with some addresses, or did until the pod ended.
func (s *State) HealthNeeds(pod []netip.Addr) bool {
	isOther := func(ip ipBytes) bool { return !slices.Contains(pod, ip.addr()) }
	for _, svc := range s.services {
		if svc.health == nil || slices.ContainsFunc(slices.Collect(maps.Keys(svc.health.listed)), isOther) {
			continue
		}
		for _, sl := range svc.slices {
			if slices.ContainsFunc(sl.endpoints, func(e sliceEndpoint) bool { return e.cond&local != 0 && !isOther(e.ip) }) {
				return true
			}
		}
	}
	return false
}
