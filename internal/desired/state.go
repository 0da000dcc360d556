// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
)

// State holds the desired state. Create it with [New].
type State struct {
	config    Config
	services  map[types.NamespacedName]*service
	slices    map[types.NamespacedName]*slice
	frontends map[FrontendKey]*frontend
	pools     []*pool // by PoolID; nil if free
	freePools []PoolID

	clusterIPs    counted[netip.Addr]
	hairpins      counted[netip.Addr]
	ownIPs        counted[netip.Addr]
	otherNodeIPs  counted[netip.Addr]
	nodeAddresses counted[netip.Addr] // nodePortAddrs, unless Config.NodePortsByAddress
	healthPorts   counted[HealthPort]
	refused       counted[RefusedNodePort]

	node         node
	otherNodes   map[string][]netip.Addr // the addresses of other Nodes, by name
	serviceCIDRs serviceCIDRs
	optOuts      optOuts

	nodePortAddrs []netip.Addr // that serve NodePorts

	dirtyFrontends []*frontend
	dirtyEndpoints []*endpoints
	dirtyHealths   []*service
	following      map[*endpoints]bool // whose choice follows loads
	problems       []Problem
	contested      map[types.NamespacedName]int // numbers of frontends that another Service has

	contestedDiffers bool // from the last call of Contested
	reportedLocal    LocalTraffic
	noLocal          NoLocalEndpoints
	proxied          int // number of Services with a spec
}

// New returns a State without objects.
func New(c Config) *State {
	s := &State{
		config:     c,
		services:   map[types.NamespacedName]*service{},
		slices:     map[types.NamespacedName]*slice{},
		frontends:  map[FrontendKey]*frontend{},
		contested:  map[types.NamespacedName]int{},
		otherNodes: map[string][]netip.Addr{},
		following:  map[*endpoints]bool{},
	}
	s.reportedLocal = s.local()
	s.node.primary = c.NodeIP
	s.node.setIP(c.NodeIP)
	s.selectNodePortAddrs()
	return s
}

// SetService adds or replaces a Service. The object is not retained.
func (s *State) SetService(in *corev1.Service) {
	s.setSpec(types.NamespacedName{Namespace: in.Namespace, Name: in.Name}, s.compactService(in))
}

// DeleteService deletes a Service.
func (s *State) DeleteService(namespace, name string) {
	s.setSpec(types.NamespacedName{Namespace: namespace, Name: name}, nil)
}

// SetEndpointSlice adds or replaces an EndpointSlice, and reports whether any part that
// the proxy uses has changed. The object is not retained.
func (s *State) SetEndpointSlice(in *discoveryv1.EndpointSlice) (changed bool) {
	name, to := types.NamespacedName{Namespace: in.Namespace, Name: in.Name}, s.compactSlice(in)
	if to.same(s.slices[name]) {
		return false
	}
	s.setSlice(name, to)
	return true
}

// DeleteEndpointSlice deletes an EndpointSlice, and reports whether it was in use.
func (s *State) DeleteEndpointSlice(namespace, name string) (changed bool) {
	n := types.NamespacedName{Namespace: namespace, Name: name}
	_, changed = s.slices[n]
	s.setSlice(n, nil)
	return changed
}

// Services returns the number of Services that are proxied.
func (s *State) Services() int { return s.proxied }

// service returns the record of a Service, and creates it if needed.
func (s *State) service(name types.NamespacedName) *service {
	svc := s.services[name]
	if svc == nil {
		svc = &service{name: name}
		s.services[name] = svc
	}
	return svc
}

// deleteIfUnused deletes the record of a Service without a spec and slices.
func (s *State) deleteIfUnused(svc *service) {
	if svc.spec == nil && len(svc.slices) == 0 {
		delete(s.services, svc.name)
	}
}

// setSlice replaces a slice. to is nil if it was deleted or is ignored.
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
		s.deleteIfUnused(svc)
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

// setSpec replaces a Service's spec. Ports of both versions keep their pools.
func (s *State) setSpec(name types.NamespacedName, spec *serviceSpec) {
	svc := s.service(name)
	old, oldPorts := svc.spec, svc.ports
	svc.spec, svc.ports = spec, nil
	if old != nil {
		s.proxied--
		for _, ip := range old.clusterIPs {
			s.clusterIPs.use(ip, -1)
		}
		s.eachClaim(old, oldPorts, s.unclaim)
		s.refuse(old, oldPorts, -1)
	}
	if spec != nil {
		s.proxied++
		if old != nil {
			spec.sources = old.sources
		}
		s.deriveSources(spec)
		svc.ports = spec.ports
		for i, p := range svc.ports {
			svc.ports[i] = s.port(svc, oldPorts, p)
		}
		for _, ip := range spec.clusterIPs {
			s.clusterIPs.use(ip, 1)
		}
		s.eachClaim(spec, svc.ports, s.claim)
		s.refuse(spec, svc.ports, 1)
	}
	for _, p := range oldPorts {
		if !slices.Contains(svc.ports, p) {
			s.updatePools(p, nil)
		}
	}
	s.setHealth(svc)
	s.deleteIfUnused(svc)
}

// port returns the same port among the previous ports of the Service, or the new one, with the
// pools that the Service's addresses and policies need.
func (s *State) port(svc *service, previous []*port, p *port) *port {
	if i := slices.IndexFunc(previous, func(q *port) bool { return q.portID == p.portID }); i >= 0 {
		previous[i].nodePort = p.nodePort
		p = previous[i]
	} else {
		p.service, p.name = svc, ServicePort{svc.name.Namespace, svc.name.Name, p.portID.name}
	}
	s.updatePools(p, svc.spec)
	return p
}

// updatePools creates the endpoints and pools of a port that a spec needs, and deletes the
// others: all without a spec.
func (s *State) updatePools(p *port, spec *serviceSpec) {
	for f := range Family(families) {
		e := p.endpoints[f]
		served := spec != nil && spec.has(f)
		switch {
		case e == nil && !served:
			continue
		case e == nil:
			e = s.newEndpoints(p, f)
		case !served:
			e.gone, p.endpoints[f] = true, nil
		}
		for scope := range Scope(scopes) {
			uses := served && spec.policy.uses(scope, spec.isExternal(p.nodePort, f))
			if uses && e.pools[scope] == nil {
				e.pools[scope] = s.newPool(e, scope)
			}
			if pool := e.pools[scope]; pool != nil {
				pool.gone = !uses
			}
		}
		s.markDirty(e) // also if no pool differs: State.noLocal depends on the policies
	}
}

func (s *State) newEndpoints(p *port, f Family) *endpoints {
	e := &endpoints{port: p, family: f}
	if p.protocol != TCP {
		e.flows = &flowWatch{}
	}
	p.endpoints[f] = e
	for _, sl := range p.service.slices {
		s.moveEndpoints(e, nil, sl)
	}
	return e
}

func (s *State) newPool(e *endpoints, scope Scope) *pool {
	pool := &pool{of: e, scope: scope}
	if len(s.freePools) > 0 {
		// Reuse the ID that was freed first: a packet in the kernel may still
		// refer to a pool that was deleted recently.
		pool.id = s.freePools[0]
		s.freePools = s.freePools[1:]
		s.pools[pool.id] = pool
	} else {
		pool.id = PoolID(len(s.pools))
		s.pools = append(s.pools, pool)
	}
	return pool
}

func (s *State) markDirty(e *endpoints) {
	if !e.dirty {
		e.dirty = true
		s.dirtyEndpoints = append(s.dirtyEndpoints, e)
	}
}
