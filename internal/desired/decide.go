// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// This file decides what happens to a new connection. Dataplanes translate the same decisions
// into kernel objects; [State.Decide] makes them for one connection, for people.

// Class says where a connection comes from, as far as policies tell origins apart.
type Class string

// The classes.
const (
	FromNode    Class = "node"    // this node itself, outside of pods
	FromPod     Class = "pod"     // a pod of this node, as [LocalTraffic] recognizes it
	FromOutside Class = "outside" // all others
)

// Origin is where a connection comes from.
type Origin struct {
	Class Class
	Addr  netip.Addr // the client's; invalid if it is not known
}

// Origin classifies a client by its address, and by the interface on which its packets arrive, "" if that is not known.
func (s *State) Origin(a netip.Addr, iface string) Origin {
	switch local := s.reportedLocal; {
	case slices.Contains(s.node.addrs, a):
		return Origin{FromNode, a}
	case local.CIDRs[FamilyOf(a)].Contains(a), local.Iface != "" && (iface == local.Iface || local.IsPrefix && strings.HasPrefix(iface, local.Iface)):
		return Origin{FromPod, a}
	}
	return Origin{FromOutside, a}
}

// Decision is what happens to a new connection. It is not affected by later changes of the State.
type Decision struct {
	Frontend *Frontend // that was reported last; nil if none serves the destination, for the reason None
	None     None

	// Service has the Frontend, the ClusterIP, or the NodePort that answers at other addresses only; zero without.
	Service     types.NamespacedName
	ServiceCIDR netip.Prefix // that has the destination, if None is Unallocated
	ServedAt    []netip.Addr // where the NodePort answers, if None is NotServing

	Allowed Answer // whether the Frontend's Sources contain the client

	Pool   PoolID // that the connection's endpoint is chosen from
	Scope  Scope
	Policy Policy
	Balance
	Port       PortView // of the Pool, with all endpoints
	Takes      string   // which endpoints the Pool takes
	Candidates []Candidate
	IfEmpty    Verdict
	Empty      Empty

	Masquerade Masquerading

	// Content is the Frontend and its pools only, as a Change from nothing.
	Content Change
}

// Candidate is an endpoint that may be chosen.
type Candidate struct {
	Backend
	Share float64 // of new connections, from 0 to 1
	Here  bool    // it has an address of this node, so its connections are not masqueraded
}

// String says what happens, without the reasons.
func (d Decision) String() string {
	switch {
	case d.Frontend == nil:
		return d.None.String()
	case d.Allowed == No:
		return "dropped: the client is in none of the source ranges"
	case len(d.Candidates) == 0:
		return [...]string{"refused: ", "dropped: ", "passed on by the node's routes: "}[d.IfEmpty] + string(d.Empty)
	}
	var to []string
	for _, c := range d.Candidates {
		to = append(to, c.Backend.String())
	}
	slices.Sort(to)
	s := strings.Join(to, " ") + ", with the client's address"
	if d.Masquerade.Masqueraded() {
		s = strings.Join(to, " ") + ", masqueraded"
	}
	return s
}

// None is why no frontend serves a destination.
type None uint8

// The reasons.
const (
	NotOurs       None = iota // no Service has the address
	UnknownPort               // it is a Service's, and the Service does not have the port
	Unallocated               // it is in a ServiceCIDR, and no Service has it
	NoNodePort                // it is an address that serves NodePorts, and no Service has this one
	NotServing                // a Service has the NodePort, which this address of the node does not serve
	Relayed                   // a relay in user space serves the NodePort on a loopback address
	NotOnLoopback             // NodePorts are refused on loopback addresses
)

// String says why no frontend serves the destination.
func (n None) String() string {
	return [...]string{
		NotOurs: "left alone: no Service has the address", UnknownPort: "refused: the Service does not have the port",
		Unallocated: "dropped: no Service has the address of the ServiceCIDR", NoNodePort: "left to the node: no Service has the NodePort",
		NotServing: "left alone: the NodePort is served at other addresses", Relayed: "relayed in user space",
		NotOnLoopback: "refused: NodePorts are not served on loopback addresses",
	}[n]
}

// Answer is yes or no, where the client's address is known.
type Answer uint8

// The answers.
const (
	Yes Answer = iota
	No
	Unknown
)

// Policy is why a connection gets the pool that it gets.
type Policy uint8

// The policies.
const (
	ScopePolicy   Policy = iota // the traffic policy applies, which gives the pool's scope
	ExternalLocal               // externalTrafficPolicy Local applies, as the client is outside
	FromInside                  // externalTrafficPolicy is Local, but does not apply to clients on this node
	FailsOver                   // no endpoint would serve the client, which is outside ([AnnotationFailover])
)

// PoolFor returns the pool for connections of a class, its scope, and why.
func (f *Frontend) PoolFor(c Class) (PoolID, Scope, Policy) {
	switch {
	case f.LocalPool == NoPool:
		return f.Pool, f.Scope, ScopePolicy
	case c == FromOutside && f.Passes:
		return f.LocalPool, Local, FailsOver
	case c == FromOutside:
		return f.LocalPool, Local, ExternalLocal
	}
	return f.Pool, f.Scope, FromInside
}

// Empty is why a pool has no endpoints.
type Empty string

// The reasons.
const (
	NoEndpointSlice Empty = "NoEndpointSlice" // the Service has none
	EmptySlices     Empty = "EmptySlices"     // its EndpointSlices have no endpoint
	NoSuchPort      Empty = "NoSuchPort"      // its EndpointSlices do not have the port
	NoReadyEndpoint Empty = "NoReadyEndpoint" // none of its endpoints is ready
	NoLocalEndpoint Empty = "NoLocalEndpoint" // policy Local, without a usable endpoint on this node
)

func whyEmpty(v *PortView, notHere bool) Empty {
	switch {
	case v.Slices == 0:
		return NoEndpointSlice
	case v.Total == 0 && v.Portless > 0:
		return NoSuchPort
	case v.Total == 0:
		return EmptySlices
	case notHere:
		return NoLocalEndpoint
	}
	return NoReadyEndpoint
}

// Masquerading is why an endpoint sees an address of this node in place of the client's, or the
// client's own. In addition, a connection that is sent back to its own pod is masqueraded, and one to
// an endpoint with an address of this node never is ([Candidate.Here]).
type Masquerading uint8

// The reasons.
const (
	// KeptUnknown: clients cannot be told apart without a criterion of [LocalTraffic].
	KeptUnknown Masquerading = iota
	KeptPod                  // a pod of this node, to a ClusterIP
	KeptLocal                // externalTrafficPolicy Local
	// MasqueradedExternal: replies have to return through this node.
	MasqueradedExternal
	MasqueradedAll    // Config.MasqueradeAll
	MasqueradedNotPod // not a pod of this node, to a ClusterIP
	MasqueradedNode   // this node itself, beside externalTrafficPolicy Local
)

// Masqueraded reports whether the endpoint sees an address of this node.
func (m Masquerading) Masqueraded() bool { return m >= MasqueradedExternal }

// Of returns what a policy says about a frontend.
func (m MasqueradePolicy) Of(f *Frontend) Masquerade {
	switch {
	case f.LocalPool != NoPool:
		return m.Local
	case f.Kind.External():
		return m.External
	}
	return m.ClusterIPs
}

func (s *State) masquerading(f *Frontend, from Origin) Masquerading {
	policy := s.config.masquerade()
	switch of := policy.Of(f); {
	case of == MasqueradeAlways && f.Kind.External():
		return MasqueradedExternal
	case of == MasqueradeAlways:
		return MasqueradedAll
	case of == MasqueradeNode && from.Class == FromNode:
		return MasqueradedNode
	case of == MasqueradeNode:
		return KeptLocal
	case !s.reportedLocal.Known(FamilyOf(f.Addr())):
		return KeptUnknown
	case from.Class == FromPod, s.reportedLocal.CIDRs[FamilyOf(f.Addr())].Contains(from.Addr): // also a node's address there
		return KeptPod
	}
	return MasqueradedNotPod
}

// allows reports whether a client may connect. All may without ranges.
func (s *SourceRanges) allows(client netip.Addr) Answer {
	switch {
	case s == nil:
		return Yes
	case !client.IsValid():
		return Unknown
	case slices.ContainsFunc(s.ranges, func(p netip.Prefix) bool { return p.Contains(client) }):
		return Yes
	}
	return No
}

// ServedBy returns which frontend serves a destination: its own, or else the NodePort, if the
// address serves NodePorts. has says which frontends there are.
func ServedBy(to FrontendKey, has func(FrontendKey) bool, servesNodePorts func(netip.Addr) bool) (FrontendKey, bool) {
	if has(to) {
		return to, true
	}
	if port := to.NodePort(); servesNodePorts(to.Addr()) && has(port) {
		return port, true
	}
	return FrontendKey{}, false
}

// frontendAt returns the frontend that serves a destination, or nil.
func (s *State) frontendAt(to FrontendKey) *frontend {
	has := func(k FrontendKey) bool { return s.serves(s.frontends[k]) }
	key, ok := ServedBy(to, has, func(a netip.Addr) bool {
		return s.sets[NodeAddresses].has(Address(a)) && !s.sets[ClusterIPs].has(Address(a))
	})
	if ok {
		return s.frontends[key]
	}
	if r := s.rangeAt(to); s.serves(r) {
		return r
	}
	return nil
}

// FrontendAt returns the frontend that serves a destination, as it was reported last; nil without. The destination need
// not be a frontend's own: NodePorts are at all addresses of the node that serve them.
func (s *State) FrontendAt(to FrontendKey) *Frontend {
	if f := s.frontendAt(to); f != nil {
		return f.reported
	}
	return nil
}

// Decide decides what happens to a new connection.
func (s *State) Decide(from Origin, to FrontendKey) Decision {
	d := Decision{Frontend: s.FrontendAt(to)}
	f := d.Frontend
	if f == nil || s.pools[f.Pool].of.port.service.spec == nil { // its Service is deleted, which the next Change reports
		d.Frontend = nil
		s.decideNone(&d, to)
		return d
	}
	d.Service = f.Service.Owner()
	d.Allowed = f.Sources.allows(from.Addr)
	d.Pool, d.Scope, d.Policy = f.PoolFor(from.Class)
	d.Content.Frontends = []FrontendChange{{New: f}}
	var pool PoolChange
	for _, id := range f.Pools() {
		full := s.pools[id].full()
		if id == d.Pool {
			pool = full
		}
		d.Content.Pools = append(d.Content.Pools, full)
	}
	of := s.pools[d.Pool].of
	d.Balance, d.IfEmpty = pool.Balance, pool.IfEmpty
	d.Port = s.viewPort(of.port.service, of, true)
	d.Takes = s.pools[d.Pool].choice.String()
	if d.Candidates = s.candidates(&pool); len(d.Candidates) == 0 {
		d.Empty = whyEmpty(&d.Port, d.IfEmpty != Reject && of.tally.all[usable]+of.tally.all[lastResort] > 0)
	}
	for i := range d.Candidates {
		if f.IsRange() {
			d.Candidates[i].port = to.Port()
		}
	}
	d.Masquerade = s.masquerading(f, from)
	return d
}

// candidates are the endpoints of a pool with their shares, the largest first.
func (s *State) candidates(p *PoolChange) (all []Candidate) {
	weights, sum := map[Backend]uint64{}, uint64(0)
	for _, b := range p.Added {
		weights[b] = DefaultWeight
	}
	for _, w := range p.Weights {
		weights[w.Backend] = w.Weight
	}
	for _, w := range weights {
		sum += w
	}
	for b, w := range weights {
		all = append(all, Candidate{b, float64(w) / float64(max(sum, 1)), slices.Contains(s.node.addrs, b.Addr())})
	}
	slices.SortFunc(all, func(a, b Candidate) int { return cmp.Or(cmp.Compare(b.Share, a.Share), a.Compare(b.Backend)) })
	return all
}

// decideNone says why no frontend serves a destination.
func (s *State) decideNone(d *Decision, to FrontendKey) {
	own := slices.Contains(s.node.addrs, to.Addr())
	family := FamilyOf(to.Addr())
	switch {
	case to.Addr().IsLoopback() && s.sets[RefusedNodePorts].has(PortOf(family, to.Protocol, to.Port())):
		d.None = NotOnLoopback
	case s.sets[ClusterIPs].has(Address(to.Addr())) && (!own || s.config.IPVS): // else the node itself has the port
		d.None = UnknownPort
		for name, svc := range s.services {
			if svc.spec != nil && (slices.Contains(svc.spec.clusterIPs, to.Addr()) || slices.Contains(svc.spec.external, externalAddr{LoadBalancerIP, to.Addr()})) {
				d.Service = name
			}
		}
	case slices.Contains(s.nodePortAddrs, to.Addr()):
		d.None = NoNodePort
	case s.config.relayed(to) && s.frontendAt(to) != nil:
		d.None, d.Service = Relayed, s.frontendAt(to).claims[0].port.name.Owner()
	case to.Addr().IsLoopback() || own:
		if d.Service = s.withNodePort(to); d.Service.Name != "" {
			d.None = NotServing
		}
		for _, a := range s.nodePortAddrs {
			if f := s.FrontendAt(to.At(a)); FamilyOf(a) == family && f != nil && f.Kind == NodePort {
				d.ServedAt = append(d.ServedAt, a)
			}
		}
	default:
		d.Service = s.withNodePort(to)
		for m := range s.sets[ServiceCIDRs].all {
			if p := m.Prefix(); p.Contains(to.Addr()) {
				d.None, d.ServiceCIDR = Unallocated, p
			}
		}
	}
}

// withNodePort is the Service that has a port as its NodePort, whether this node has an address that serves it or not.
func (s *State) withNodePort(to FrontendKey) (owner types.NamespacedName) {
	if f := s.frontends[to.NodePort()]; f != nil && len(f.claims) > 0 {
		return f.claims[0].port.name.Owner()
	}
	if !s.config.IPVS {
		return owner
	}
	// There is a frontend for each address that serves NodePorts, and none without such an address.
	for name, svc := range s.services {
		for _, p := range svc.ports {
			svc.spec.eachNodePort(p, unspecified[:], func(key FrontendKey, _ AddressKind, _ *port) {
				if key == to.NodePort() {
					owner = name
				}
			})
		}
	}
	return owner
}

// Destinations returns the destinations that packets to a frontend have: its own address, or those
// of the node that serve it as a NodePort.
func (s *State) Destinations(key FrontendKey) []FrontendKey {
	if f := s.frontends[key]; f != nil {
		return s.destinations(f)
	}
	return nil
}
