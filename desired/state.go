// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Config is what a State has to know beside objects.
type Config struct {
	// NodeName is the name of the node that is being programmed, as
	// EndpointSlices write it.
	NodeName string
}

// State holds the objects' meaning. The zero value is not usable; see [New].
type State struct {
	config    Config
	services  map[types.NamespacedName]*service
	slices    map[types.NamespacedName]*slice
	frontends map[FrontendKey]*frontend
	pools     []*pool // by PoolID; nil where free
	freePools []PoolID

	clusterIPs addresses
	hairpins   addresses

	dirtyFrontends []*frontend
	dirtyPools     []*pool
	problems       []Problem
	proxied        int // Services with a spec
}

// New is a State without objects.
func New(c Config) *State {
	return &State{
		config:    c,
		services:  map[types.NamespacedName]*service{},
		slices:    map[types.NamespacedName]*slice{},
		frontends: map[FrontendKey]*frontend{},
	}
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

// SetEndpointSlice takes an EndpointSlice that is new or has changed. The
// object is not kept.
func (s *State) SetEndpointSlice(in *discoveryv1.EndpointSlice) {
	s.setSlice(types.NamespacedName{Namespace: in.Namespace, Name: in.Name}, s.compactSlice(in))
}

// DeleteEndpointSlice takes note that an EndpointSlice is gone.
func (s *State) DeleteEndpointSlice(namespace, name string) {
	s.setSlice(types.NamespacedName{Namespace: namespace, Name: name}, nil)
}

// SetNode takes a Node that is new or has changed. Nothing that is decided so
// far depends on a Node: topology will.
func (s *State) SetNode(*corev1.Node) {}

// DeleteNode takes note that a Node is gone.
func (s *State) DeleteNode(string) {}

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
	}
	if spec != nil {
		s.proxied++
		for _, ps := range spec.ports {
			svc.ports = append(svc.ports, s.port(svc, oldPorts, ps))
		}
	}
	if old != nil {
		for _, ip := range old.clusterIPs {
			s.clusterIPs.use(ip.As16(), -1)
			for _, p := range oldPorts {
				s.unclaim(frontendKey(ip, p), p)
			}
		}
	}
	if spec != nil {
		for _, ip := range spec.clusterIPs {
			s.clusterIPs.use(ip.As16(), 1)
			for _, p := range svc.ports {
				s.claim(frontendKey(ip, p), ClusterIP, p)
			}
		}
	}
	for _, p := range oldPorts {
		if !slices.Contains(svc.ports, p) {
			s.dropPools(p, func(Family) bool { return false })
		}
	}
	s.tidy(svc)
}

func frontendKey(ip netip.Addr, p *port) FrontendKey {
	return FrontendKey{netip.AddrPortFrom(ip, p.number), p.protocol}
}

// port finds the port among those the Service had, or makes it, and sees to it
// that it has a pool in each family of the Service's addresses.
func (s *State) port(svc *service, had []*port, spec portSpec) *port {
	var p *port
	if i := slices.IndexFunc(had, func(p *port) bool { return p.portSpec == spec }); i >= 0 {
		p = had[i]
	} else {
		p = &port{portSpec: spec, service: svc, name: ServicePort{svc.name.Namespace, svc.name.Name, spec.name}}
	}
	wanted := func(f Family) bool {
		return slices.ContainsFunc(svc.spec.clusterIPs, func(ip netip.Addr) bool { return FamilyOf(ip) == f })
	}
	policyDiffers := p.policy != svc.spec.policy
	p.policy = svc.spec.policy
	s.dropPools(p, wanted)
	for f := range Family(families) {
		switch {
		case wanted(f) && p.pools[f] == nil:
			p.pools[f] = s.newPool(p, f)
			for _, sl := range svc.slices {
				s.moveEndpoints(p.pools[f], nil, sl)
			}
		case p.pools[f] != nil && policyDiffers:
			s.dirtyPool(p.pools[f])
		}
	}
	return p
}

func (s *State) newPool(p *port, f Family) *pool {
	pool := &pool{port: p, family: f}
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

// dropPools ends a port's pools in families that are not wanted.
func (s *State) dropPools(p *port, wanted func(Family) bool) {
	for f, pool := range p.pools {
		if pool != nil && !wanted(Family(f)) {
			pool.gone = true
			s.dirtyPool(pool)
			p.pools[f] = nil
		}
	}
}

func (s *State) dirtyPool(p *pool) {
	if !p.dirty {
		p.dirty = true
		s.dirtyPools = append(s.dirtyPools, p)
	}
}
