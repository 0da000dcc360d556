// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
)

// State holds the objects' meaning. The zero value is not usable; see [New].
type State struct {
	config    Config
	services  map[types.NamespacedName]*service
	slices    map[types.NamespacedName]*slice
	frontends map[FrontendKey]*frontend
	pools     []*pool // by PoolID; nil where free
	freePools []PoolID

	clusterIPs  addresses
	hairpins    addresses
	healthPorts counted[HealthPort]

	node         node
	serviceCIDRs serviceCIDRs

	nodePortAddrs    []netip.Addr          // on which NodePorts answer
	nodePortServices map[*service]struct{} // which have NodePorts
	restricted       map[*service]struct{} // which have source ranges

	dirtyFrontends []*frontend
	dirtyPools     []*pool
	dirtyHealths   []*service
	problems       []Problem
	toldLocal      LocalTraffic
	noLocal        NoLocalEndpoints
	proxied        int // Services with a spec
}

// New is a State without objects.
func New(c Config) *State {
	s := &State{
		config:           c,
		services:         map[types.NamespacedName]*service{},
		slices:           map[types.NamespacedName]*slice{},
		frontends:        map[FrontendKey]*frontend{},
		nodePortServices: map[*service]struct{}{},
		restricted:       map[*service]struct{}{},
	}
	s.toldLocal = s.local()
	s.node.setIP(c.NodeIP)
	s.selectNodePortAddrs()
	return s
}

// SetService takes a Service that is new or has changed. The object is not
// kept.
func (s *State) SetService(in *corev1.Service) {
	s.setSpec(types.NamespacedName{Namespace: in.Namespace, Name: in.Name}, s.compactService(in))
}

// DeleteService takes note that a Service is gone.
func (s *State) DeleteService(namespace, name string) {
	s.setSpec(types.NamespacedName{Namespace: namespace, Name: name}, nil)
}

// SetEndpointSlice takes an EndpointSlice that is new or has changed, and says
// whether what matters of it has. The object is not kept.
func (s *State) SetEndpointSlice(in *discoveryv1.EndpointSlice) (changed bool) {
	name, to := types.NamespacedName{Namespace: in.Namespace, Name: in.Name}, s.compactSlice(in)
	if to.same(s.slices[name]) {
		return false
	}
	s.setSlice(name, to)
	return true
}

// DeleteEndpointSlice takes note that an EndpointSlice is gone, and says whether
// it mattered.
func (s *State) DeleteEndpointSlice(namespace, name string) (changed bool) {
	n := types.NamespacedName{Namespace: namespace, Name: name}
	_, changed = s.slices[n]
	s.setSlice(n, nil)
	return changed
}

// Services is how many Services are proxied.
func (s *State) Services() int { return s.proxied }

// service is the record of a Service, made when there is none.
func (s *State) service(name types.NamespacedName) *service {
	svc := s.services[name]
	if svc == nil {
		svc = &service{name: name}
		s.services[name] = svc
	}
	return svc
}

// tidy forgets a Service of which nothing is known any more.
func (s *State) tidy(svc *service) {
	if svc.spec == nil && len(svc.slices) == 0 {
		delete(s.services, svc.name)
	}
}

// setSlice replaces a slice; to is nil when it is gone or of no interest.
func (s *State) setSlice(name types.NamespacedName, to *slice) {
	from := s.slices[name]
	if to == nil {
		delete(s.slices, name)
	} else {
		s.slices[name] = to
	}
	if from != nil && (to == nil || from.service != to.service) {
		svc := s.services[from.service]
		svc.slices = slices.DeleteFunc(svc.slices, func(x *slice) bool { return x == from })
		svc.replaceSlice(s, from, nil)
		s.tidy(svc)
		from = nil
	}
	if to == nil {
		return
	}
	svc := s.service(to.service)
	if i := slices.Index(svc.slices, from); from != nil && i >= 0 {
		svc.slices[i] = to
	} else {
		svc.slices = append(svc.slices, to)
	}
	svc.replaceSlice(s, from, to)
}

// setSpec replaces a Service's spec. Ports that both versions have keep their
// pools.
func (s *State) setSpec(name types.NamespacedName, spec *serviceSpec) {
	svc := s.services[name]
	if svc == nil {
		if spec == nil {
			return
		}
		svc = s.service(name)
	}
	old, oldPorts := svc.spec, svc.ports
	svc.spec, svc.ports = spec, nil
	if old != nil {
		s.proxied--
		for _, ip := range old.clusterIPs {
			s.clusterIPs.use(ip.As16(), -1)
		}
		s.eachClaim(old, oldPorts, s.unclaim)
	}
	if spec != nil {
		s.proxied++
		var former [families]*SourceRanges
		if old != nil {
			former = old.sources
		}
		s.allow(spec, former)
		for _, ps := range spec.ports {
			svc.ports = append(svc.ports, s.port(svc, oldPorts, ps))
		}
		for _, ip := range spec.clusterIPs {
			s.clusterIPs.use(ip.As16(), 1)
		}
		s.eachClaim(spec, svc.ports, s.claim)
	}
	for _, p := range oldPorts {
		if !slices.Contains(svc.ports, p) {
			s.wantPools(p, func(Family, Scope) bool { return false })
		}
	}
	member(s.nodePortServices, svc, slices.ContainsFunc(svc.ports, func(p *port) bool { return p.nodePort != 0 }))
	member(s.restricted, svc, spec != nil && len(spec.ranges[IPv4])+len(spec.ranges[IPv6]) > 0)
	s.setHealth(svc)
	s.tidy(svc)
}

// member puts a Service into a set or takes it out.
func member(set map[*service]struct{}, svc *service, in bool) {
	if in {
		set[svc] = struct{}{}
	} else {
		delete(set, svc)
	}
}

// port finds the port among those the Service had, or makes it, and sees to it
// that it has the pools that the Service's addresses and policies ask for.
func (s *State) port(svc *service, had []*port, spec portSpec) *port {
	var p *port
	if i := slices.IndexFunc(had, func(p *port) bool { return p.portID == spec.portID }); i >= 0 {
		p = had[i]
	} else {
		p = &port{portID: spec.portID, service: svc, name: ServicePort{svc.name.Namespace, svc.name.Name, spec.name}}
	}
	p.nodePort = spec.nodePort
	s.wantPools(p, func(f Family, scope Scope) bool {
		return svc.spec.has(f) && svc.spec.policy.uses(scope, svc.spec.isExternal(p.nodePort, f))
	})
	return p
}

// eachPool yields the port's pools.
func (p *port) eachPool(yield func(*pool) bool) {
	for f := range p.pools {
		for _, pool := range p.pools[f] {
			if pool != nil && !yield(pool) {
				return
			}
		}
	}
}

// wantPools makes the port's pools that are wanted and ends those that are not.
func (s *State) wantPools(p *port, wanted func(Family, Scope) bool) {
	for f := range Family(families) {
		var want [scopes]bool
		for scope := range Scope(scopes) {
			want[scope] = wanted(f, scope)
		}
		for scope := range Scope(scopes) {
			at := &p.pools[f][scope]
			switch {
			case want[scope] && *at == nil:
				*at = s.newPool(p, f, scope)
				for _, sl := range p.service.slices {
					s.moveEndpoints(*at, nil, sl)
				}
			case !want[scope] && *at != nil:
				(*at).gone = true
				s.dirtyPool(*at)
				*at = nil
			}
			if *at != nil {
				(*at).setWatch(p.watchesFlows(scope, want))
			}
			if *at != nil && scope == Local {
				s.dirtyPool(*at) // which traffic it is for may be other than before
			}
		}
	}
}

func (s *State) newPool(p *port, f Family, scope Scope) *pool {
	pool := &pool{port: p, family: f, scope: scope}
	if len(s.freePools) > 0 {
		// The one that has been free for longest, as something may still
		// be under way to the one that became free last.
		pool.id = s.freePools[0]
		s.freePools = s.freePools[1:]
		s.pools[pool.id] = pool
	} else {
		pool.id = PoolID(len(s.pools))
		s.pools = append(s.pools, pool)
	}
	s.dirtyPool(pool)
	return pool
}

func (s *State) dirtyPool(p *pool) {
	if !p.dirty {
		p.dirty = true
		s.dirtyPools = append(s.dirtyPools, p)
	}
}
