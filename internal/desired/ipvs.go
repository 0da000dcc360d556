// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"net/netip"
	"slices"
)

// This file decides, with [Config.IPVS], what virtual servers serve and what the dataplane's table serves.
//
// IPVS serves an external IP only while an interface of the node has it. It may be another machine's
// address, which this node could not reach if it kept packets to it. Otherwise the table serves it. The
// same goes for the IP of a load balancer that is another Node's, as those of k3s's ServiceLB are.

// poolKinds returns the kinds of a frontend's pools: the one for traffic from this node and its pods, and
// the one for traffic from outside.
func (s *State) poolKinds(spec *serviceSpec, kind AddressKind, a netip.Addr) (inside, outside poolKind) {
	scope, fromOutside := spec.policy.scopes(kind)
	inside, outside = poolKind(scope), poolKind(fromOutside)
	foreign := kind == ExternalIP || kind == LoadBalancerIP && s.balancers.others[a] > 0
	if !s.config.IPVS || foreign && !s.sets[OwnIPs].has(Address(a)) {
		return inside, outside
	}
	if inside == outside {
		inside |= byIPVS
	}
	return inside, outside | byIPVS
}

// usedPools returns the kinds of pools that the frontends of a port need in a family.
func (s *State) usedPools(spec *serviceSpec, p *port, f Family) (uses [kinds]bool) {
	use := func(kind AddressKind, a netip.Addr) {
		inside, outside := s.poolKinds(spec, kind, a)
		uses[inside], uses[outside] = true, true
		uses[passing] = uses[passing] || spec.passes(kind)
	}
	use(ClusterIP, netip.Addr{})
	if p.nodePort != 0 {
		use(NodePort, netip.Addr{})
	}
	for _, a := range spec.external {
		if FamilyOf(a.ip) == f {
			use(a.kind, a.ip)
		}
	}
	return uses
}

// balancers are what is known of the IPs of load balancers, of which some are in ClusterIPs.
type balancers struct {
	frontends map[netip.Addr]int // how many that were reported have the address
	others    map[netip.Addr]int // how many other Nodes have it
	external  map[netip.Addr]int // how often Services have it, external IPs too
	placed    map[netip.Addr]bool
	touched   []netip.Addr // may have to be placed, or not any more
}

// countBalancer counts a frontend that is reported (n = 1) or was reported (n = -1); nil for none.
func (s *State) countBalancer(f *Frontend, n int) {
	if s.config.IPVS && f != nil && f.Kind == LoadBalancerIP && !f.Passes {
		add(s.balancers.frontends, f.Addr(), n)
		s.balancers.touched = append(s.balancers.touched, f.Addr())
	}
}

// countExternal counts the external addresses of a Service (n = 1) or former one (n = -1).
func (s *State) countExternal(spec *serviceSpec, n int) {
	if s.config.IPVS {
		for _, a := range spec.external {
			add(s.balancers.external, a.ip, n)
		}
	}
}

// placeBalancers has those in ClusterIPs that are neither the node's own nor another Node's.
func (s *State) placeBalancers() {
	b := &s.balancers
	for _, a := range b.touched {
		place := b.frontends[a] > 0 && b.others[a] == 0 && !s.sets[OwnIPs].has(Address(a))
		switch {
		case place && !b.placed[a]:
			b.placed[a] = true
			s.sets[ClusterIPs].use(Address(a), 1)
		case !place && b.placed[a]:
			delete(b.placed, a)
			s.sets[ClusterIPs].use(Address(a), -1)
		}
	}
	b.touched = nil
}

// moveAddresses has everything decided again that depends on which addresses this node or another one has.
func (s *State) moveAddresses(former, now []netip.Addr) {
	moved := append(subtract(former, now), subtract(now, former)...)
	for _, a := range moved {
		s.touchRanges(a.Unmap())
	}
	if !s.config.IPVS || len(moved) == 0 {
		return
	}
	s.balancers.touched = append(s.balancers.touched, moved...)
	moved = slices.DeleteFunc(moved, func(a netip.Addr) bool { return s.balancers.external[a] == 0 })
	if len(moved) == 0 {
		return // most Nodes, each of which would cost a visit of all Services
	}
	for _, svc := range s.services {
		if svc.spec == nil || !slices.ContainsFunc(svc.spec.external, func(a externalAddr) bool { return slices.Contains(moved, a.ip) }) {
			continue
		}
		for _, p := range svc.ports {
			s.updatePools(p, svc.spec)
		}
		s.dirtyClaims(svc)
	}
}

// add adds n to a count, and forgets it if it is 0.
func add[K comparable](counts map[K]int, k K, n int) {
	if counts[k] += n; counts[k] == 0 {
		delete(counts, k)
	}
}
