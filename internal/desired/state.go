// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// State holds the desired state. Create it with [New].
type State struct {
	config    Config
	services  map[types.NamespacedName]*service
	slices    map[types.NamespacedName]*slice
	frontends map[FrontendKey]*frontend
	addresses map[netip.Addr]*address // once there are ranges of ports
	pools     []*pool                 // by PoolID; nil if free
	freePools []PoolID

	sets [Sets]counted // NodeAddresses are nodePortAddrs, unless Config.IPVS

	node         node
	zones        zoneSets                // with which new slices begin, so that most share them
	otherNodes   map[string][]netip.Addr // the addresses of other Nodes, by name
	balancers    balancers
	serviceCIDRs map[string][]netip.Prefix // by the name of the object
	optOuts      optOuts
	permits      permits

	nodePortAddrs []netip.Addr // that serve NodePorts

	dirtyFrontends []*frontend
	heldFrontends  []*frontend         // of dirtyFrontends, while a change is made: the next one has them
	dirtyRanges    map[netip.Addr]bool // addresses
	dirtyEndpoints []*endpoints
	moves          map[*endpoints][]move // that wait for a change
	moved          map[string]int        // endpoints of namespaces, since the last change
	postponed      map[string]bool       // namespaces with endpoints that are late
	dirtyHealths   []*service
	following      map[*endpoints]bool       // whose choice follows loads
	uncounted      error                     // why loads are not known; nil if they are
	warming        map[*endpoints]bool       // that have entries which became ready a short time ago
	now, stepped   time.Time                 // of the last Advance, and of the last look at them
	detecting      map[*endpoints]bool       // whose answers are watched
	silent         map[string]map[Target]int // by namespace: endpoints that do not answer, in the order of when that was found
	silences       int
	problems       []Problem
	told           map[object][]Problem         // those that an object had in its last version
	contested      map[types.NamespacedName]int // numbers of frontends that another Service has
	contests       map[*service]int             // numbers of problems about them since the last change

	slots    budget
	elements budget
	ranges   budget
	limited  map[*service]bool // Services with limits
	leftOut  []*service        // as the kernel has refused them

	limitsDiffer     bool // limited, from the last change
	contestedDiffers bool // from the last call of Contested
	reportedLocal    LocalTraffic
	ranged           bool // there are ranges of ports, or have been
	reportedRanged   bool
	described        bool // there was a Change or Full
	noLocal          NoLocalEndpoints
	proxied          int // number of Services with a spec
}

// New returns a State without objects.
func New(c Config) *State {
	elements := cmp.Or(c.NamespaceElements, MaxElements)
	s := &State{
		config:       c,
		services:     map[types.NamespacedName]*service{},
		slices:       map[types.NamespacedName]*slice{},
		frontends:    map[FrontendKey]*frontend{},
		addresses:    map[netip.Addr]*address{},
		dirtyRanges:  map[netip.Addr]bool{},
		balancers:    balancers{map[netip.Addr]int{}, map[netip.Addr]int{}, map[netip.Addr]int{}, map[netip.Addr]bool{}, nil},
		contested:    map[types.NamespacedName]int{},
		contests:     map[*service]int{},
		otherNodes:   map[string][]netip.Addr{},
		serviceCIDRs: map[string][]netip.Prefix{},
		optOuts:      optOuts{map[types.NamespacedName]*pod{}, map[string]bool{}},
		following:    map[*endpoints]bool{},
		moves:        map[*endpoints][]move{},
		moved:        map[string]int{},
		warming:      map[*endpoints]bool{},
		detecting:    map[*endpoints]bool{},
		silent:       map[string]map[Target]int{},
		told:         map[object][]Problem{},
		limited:      map[*service]bool{},
		permits:      permits{map[string]bool{}, map[string]metav1.Object{}},
		slots:        newBudget(cmp.Or(c.NamespaceSlots, MaxSlots), 0, namespacesSlots),
		elements:     newBudget(elements, elements*256/MaxElements, namespacesElements),
		ranges:       newBudget(MaxRanges, 0, namespacesRanges),
	}
	s.reportedLocal = s.local()
	s.node.primary = c.NodeIP
	s.node.setIP(c.NodeIP)
	s.selectNodePortAddrs()
	return s
}

// SetService adds or replaces a Service. The object is not retained.
func (s *State) SetService(in *corev1.Service) {
	in = permitted(s, in)
	name, had := types.NamespacedName{Namespace: in.Namespace, Name: in.Name}, len(s.problems)
	spec := s.compactService(in)
	s.onlyNew(object{"Service", name}, had)
	s.setSpec(name, spec)
}

// DeleteService deletes a Service.
func (s *State) DeleteService(namespace, name string) {
	n := types.NamespacedName{Namespace: namespace, Name: name}
	delete(s.told, object{"Service", n})
	s.forget((*corev1.Service)(nil), namespace, name)
	s.setSpec(n, nil)
}

// SetEndpointSlice adds or replaces an EndpointSlice, and reports whether any part that
// the proxy uses has changed. The object is not retained.
func (s *State) SetEndpointSlice(in *discoveryv1.EndpointSlice) (changed bool) {
	in = permitted(s, in)
	name, had := types.NamespacedName{Namespace: in.Namespace, Name: in.Name}, len(s.problems)
	to := s.compactSlice(in)
	s.onlyNew(object{"EndpointSlice", name}, had)
	if to.same(s.slices[name]) {
		return false
	}
	s.setSlice(name, to)
	return true
}

// DeleteEndpointSlice deletes an EndpointSlice, and reports whether it was in use.
func (s *State) DeleteEndpointSlice(namespace, name string) (changed bool) {
	n := types.NamespacedName{Namespace: namespace, Name: name}
	delete(s.told, object{"EndpointSlice", n})
	s.forget((*discoveryv1.EndpointSlice)(nil), namespace, name)
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
	if svc.wanted == nil && !svc.refused && len(svc.slices) == 0 {
		delete(s.services, svc.name)
	}
}

// setSlice replaces a slice. to is nil if it was deleted or is ignored.
func (s *State) setSlice(name types.NamespacedName, to *slice) {
	from := s.slices[name]
	s.leaveAPIServer(from)
	s.leaveAPIServer(to)
	if to == nil {
		delete(s.slices, name)
	} else {
		s.slices[name] = to
	}
	if from != nil && (to == nil || from.service != to.service) {
		svc := s.services[from.service]
		svc.slices = slices.DeleteFunc(svc.slices, func(x *slice) bool { return x == from })
		s.sliceReplaced(svc, from, nil)
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
	s.sliceReplaced(svc, from, to)
}

// sliceReplaced updates a Service whose slices have changed.
func (s *State) sliceReplaced(svc *service, from, to *slice) {
	served := svc.spec != nil
	svc.health.count(from, -1)
	svc.health.count(to, 1)
	backends := svc.backends
	svc.countBackends(from, -1)
	svc.countBackends(to, 1)
	if svc.backends != backends {
		s.countElements(svc)
	}
	if served == (svc.spec != nil) { // else all or none of its slices count
		svc.replaceSlice(s, from, to)
	}
}

// LeaveOut has no frontends and pools of a Service, whatever its objects are, until TakeBack. It
// reports whether there were some.
func (s *State) LeaveOut(name types.NamespacedName, reason string) bool {
	svc := s.services[name]
	if svc == nil || svc.spec == nil {
		return false
	}
	svc.refused = true
	s.serve(svc)
	s.leftOut = append(s.leftOut, svc)
	s.addProblem(ProblemOf(name, "spec", "the Service is left out for a while: "+reason))
	return true
}

// TakeBack has again all Services that were left out. It reports whether there were some.
func (s *State) TakeBack() bool {
	all := s.leftOut
	s.leftOut = nil
	for _, svc := range all {
		svc.refused = false
		s.serve(svc)
	}
	return len(all) > 0
}

// setSpec replaces a Service's spec.
func (s *State) setSpec(name types.NamespacedName, spec *serviceSpec) {
	svc := s.service(name)
	if spec != nil && svc.wanted != nil && spec.same(svc.wanted) {
		return
	}
	svc.wanted, svc.backends = spec, [families]int{}
	for _, sl := range svc.slices {
		svc.countBackends(sl, 1)
	}
	s.countElements(svc)
	s.serve(svc)
}

// serve serves a Service by its spec, unless it is left out. Ports of both versions keep their pools.
func (s *State) serve(svc *service) {
	spec := svc.wanted
	if svc.refused || s.elements.over(svc) {
		spec = nil
	} else if s.ranges.over(svc) {
		without := *spec
		without.ports, without.portRanges = spec.ports[spec.portRanges:], 0
		spec = &without
	}
	if spec == svc.spec {
		s.deleteIfUnused(svc)
		return
	}
	old, oldPorts := svc.spec, svc.ports
	if old != nil {
		s.proxied--
		for _, ip := range old.clusterIPs {
			s.sets[ClusterIPs].use(Address(ip), -1)
			s.touchRanges(ip)
		}
		s.eachClaim(old, oldPorts, s.unclaim)
		s.refuse(old, oldPorts, -1)
		s.countExternal(old, -1)
	}
	svc.spec, svc.ports = spec, nil
	s.setLimits(svc, old)
	previous := map[portID]*port{}
	for _, p := range oldPorts {
		previous[p.portID] = p
	}
	if spec != nil {
		s.proxied++
		if old != nil {
			spec.sources = old.sources
		}
		s.deriveSources(spec)
		svc.ports = spec.ports
		for i, p := range svc.ports {
			svc.ports[i] = s.port(svc, previous, p)
		}
		for _, ip := range spec.clusterIPs {
			s.sets[ClusterIPs].use(Address(ip), 1)
			s.touchRanges(ip)
		}
		s.eachClaim(spec, svc.ports, s.claim)
		s.refuse(spec, svc.ports, 1)
		s.countExternal(spec, 1)
	}
	for _, p := range oldPorts {
		if previous[p.portID] != nil {
			s.updatePools(p, nil)
		}
	}
	s.setHealth(svc)
	s.deleteIfUnused(svc)
}

// port returns the same port, taken from the previous ports of the Service, or the new one, with the
// pools that the Service's addresses and policies need.
func (s *State) port(svc *service, previous map[portID]*port, p *port) *port {
	if same := previous[p.portID]; same != nil {
		delete(previous, p.portID)
		same.nodePort = p.nodePort
		if p.parts != nil && !slices.Equal(*same.parts, *p.parts) {
			same.parts = p.parts
		}
		p = same
	} else {
		p.service, p.name = svc, ServicePort{svc.name.Namespace, svc.name.Name, p.portID.name}
	}
	s.updatePools(p, svc.spec)
	return p
}

// updatePools creates the endpoints and pools of a port that a spec needs, and deletes the others: all without a spec.
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
		var uses [kinds]bool
		if served {
			uses = s.usedPools(spec, p, f)
		}
		for kind, uses := range uses {
			if uses && e.pools[kind] == nil {
				e.pools[kind] = s.newPool(e, poolKind(kind))
			}
			if pool := e.pools[kind]; pool != nil {
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
		s.move(e, nil, sl)
	}
	return e
}

func (s *State) newPool(e *endpoints, kind poolKind) *pool {
	pool := &pool{of: e, kind: kind}
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
