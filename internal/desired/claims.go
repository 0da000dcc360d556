// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// frontend is a frontend and the Service ports that claim it. More than one claim is a conflict between Services. (The
// API server prevents conflicts of ClusterIPs and NodePorts, but not of other addresses.) The claim with the lowest
// AddressKind wins, so that no external IP can take over a ClusterIP or a NodePort. Among claims of one kind, the
// oldest Service wins, by creation time and then by name, so that the outcome does not depend on the order of events.
type frontend struct {
	key      FrontendKey
	claims   []claim // in order of precedence; the first one wins
	reported *Frontend
	dirty    bool
	winner   *frontend // a range that has ports of this one, which is not served; or the lowest port that this range loses

	contest *[2]ServicePort // winner and loser of the last conflict that was reported; nil for none
}

type claim struct {
	kind AddressKind
	port *port
}

// compare orders claims by precedence. The claims of a Service go before its spec does.
func (a claim) compare(b claim) int {
	return cmp.Or(
		cmp.Compare(a.kind, b.kind),
		cmp.Compare(a.port.service.spec.created, b.port.service.spec.created),
		cmp.Compare(a.port.name.Namespace, b.port.name.Namespace),
		cmp.Compare(a.port.name.Name, b.port.name.Name),
		cmp.Compare(a.port.name.Port, b.port.name.Port),
		cmp.Compare(a.port.protocol, b.port.protocol),
	)
}

// find returns the place of a claim.
func (f *frontend) find(c claim) int {
	i, _ := slices.BinarySearchFunc(f.claims, c, claim.compare)
	return i
}

// ofService returns the number of a Service's claims, without a look at those of others.
func (f *frontend) ofService(svc *service) (n int) {
	first := &port{service: svc, name: ServicePort{Namespace: svc.name.Namespace, Name: svc.name.Name}}
	for kind := ClusterIP; kind <= ExternalIP; kind++ {
		for i := f.find(claim{kind, first}); i < len(f.claims) && f.claims[i].kind == kind && f.claims[i].port.service == svc; i++ {
			n++
		}
	}
	return n
}

// eachClaim calls do for every frontend that the ports of a spec claim.
func (s *State) eachClaim(spec *serviceSpec, ports []*port, do func(FrontendKey, AddressKind, *port)) {
	for _, p := range ports {
		for _, ip := range spec.clusterIPs {
			do(frontendKey(ip, p.number, p), ClusterIP, p)
		}
		for _, a := range spec.external {
			do(frontendKey(a.ip, p.number, p), a.kind, p)
		}
		if s.config.IPVS {
			spec.eachNodePort(p, s.nodePortAddrs, do)
		} else {
			spec.eachNodePort(p, unspecified[:], do)
		}
		for f, ip := range loopbacks {
			if p.nodePort != 0 && spec.has(Family(f)) && s.config.relays(Family(f), p.protocol) {
				do(frontendKey(ip, p.nodePort, p), NodePort, p)
			}
		}
	}
}

// eachNodePort calls do for a port's NodePort at each address.
func (spec *serviceSpec) eachNodePort(p *port, addrs []netip.Addr, do func(FrontendKey, AddressKind, *port)) {
	for _, ip := range addrs {
		if p.nodePort != 0 && spec.has(FamilyOf(ip)) {
			do(frontendKey(ip, p.nodePort, p), NodePort, p)
		}
	}
}

func frontendKey(ip netip.Addr, number uint16, p *port) FrontendKey {
	return FrontendKey{netip.AddrPortFrom(ip, number), p.protocol, p.last}
}

func (s *State) claim(key FrontendKey, kind AddressKind, p *port) {
	f := s.frontends[key]
	if f == nil {
		f = &frontend{key: key}
		s.frontends[key] = f
		s.noteFrontend(f)
	}
	c := claim{kind, p}
	i := f.find(c)
	s.countOverridden(f, -1)
	s.countClaim(f, i, c, 1)
	f.claims = slices.Insert(f.claims, i, c)
	s.countOverridden(f, 1)
	s.dirtyFrontend(f)
	if len(f.claims) > 1 {
		s.reportContest(f, f.key, f.claims[0], f.claims[max(i, 1)])
	}
	for e, nodePort := range s.overrides(f) {
		winner, loser := rank(e, nodePort)
		s.reportContest(e, e.key, winner, loser)
	}
	if key.IsRange() {
		s.touchRanges(key.Addr())
	}
}

// reportContest reports that a port does not have a frontend that it claims, because of another one with a
// key, unless that is what was reported last.
func (s *State) reportContest(f *frontend, key FrontendKey, winner, loser claim) {
	contest := [2]ServicePort{winner.port.name, loser.port.name}
	if loser.port.service == winner.port.service || f.contest != nil && *f.contest == contest {
		return
	}
	f.contest = &contest
	if s.contests[loser.port.service]++; s.contests[loser.port.service] > mostProblems {
		return
	}
	field := "spec.ports"
	if loser.port.last != 0 {
		field = rangesField
	}
	problem := ProblemOf(loser.port.service.name, field, fmt.Sprintf("%s belongs to Service %s as its %s", key, winner.port.name, winner.kind))
	problem.Contested = true
	s.addProblem(problem)
}

func (s *State) unclaim(key FrontendKey, kind AddressKind, p *port) {
	f, c := s.frontends[key], claim{kind, p}
	i := f.find(c)
	s.countOverridden(f, -1)
	f.claims = slices.Delete(f.claims, i, i+1)
	s.countClaim(f, i, c, -1)
	s.countOverridden(f, 1)
	s.dirtyFrontend(f)
	if key.IsRange() {
		s.touchRanges(key.Addr())
	}
}

// countClaim counts, n times, what a claim at place i adds to the claims of Services that do not
// have the frontend. The claim is not among the others.
func (s *State) countClaim(f *frontend, i int, c claim, n int) {
	if len(f.claims) == 0 || f.claims[0].port.service == c.port.service {
		return
	}
	if i > 0 {
		s.count(c.port.service, n)
		return
	}
	former := f.claims[0].port.service
	s.count(former, n*f.ofService(former))
	s.count(c.port.service, -n*f.ofService(c.port.service))
}

// countOverridden counts, n times, the Services that lose a NodePort at an address to another
// frontend, or the other way round.
func (s *State) countOverridden(f *frontend, n int) {
	for e, nodePort := range s.overrides(f) {
		s.countPair(e, nodePort, n)
	}
}

func (s *State) countPair(e, nodePort *frontend, n int) {
	if winner, loser := rank(e, nodePort); winner.port.service != loser.port.service {
		s.count(loser.port.service, n)
	}
	s.dirtyFrontend(e)
}

func (s *State) count(svc *service, n int) {
	s.contestedDiffers = s.contestedDiffers || n != 0
	add(s.contested, svc.name, n)
}

// Contested returns the number of frontends that Services claim and do not have because another Service has them, by
// Service, and whether it differs from the last call. The map must not be modified, and changes with the State.
func (s *State) Contested() (all map[types.NamespacedName]int, differs bool) {
	differs, s.contestedDiffers = s.contestedDiffers, false
	return s.contested, differs
}

func (s *State) dirtyFrontend(f *frontend) {
	if !f.dirty {
		f.dirty = true
		s.dirtyFrontends = append(s.dirtyFrontends, f)
	}
}

// dirtyClaims has all frontends decided again that a Service claims.
func (s *State) dirtyClaims(svc *service) {
	s.eachClaim(svc.spec, svc.ports, func(key FrontendKey, _ AddressKind, _ *port) { s.dirtyFrontend(s.frontends[key]) })
}

// dirtyClaimsOf has those decided again that lead to some endpoints.
func (s *State) dirtyClaimsOf(e *endpoints) {
	s.eachClaim(e.port.service.spec, []*port{e.port}, func(key FrontendKey, _ AddressKind, _ *port) {
		if FamilyOf(key.Addr()) == e.family {
			s.dirtyFrontend(s.frontends[key])
		}
	})
}

// frontendChange returns the difference from the last report and marks it as reported.
func (s *State) frontendChange(f *frontend) (FrontendChange, bool) {
	c := FrontendChange{Old: f.reported}
	if s.serves(f) {
		c.New = s.frontend(f.claims[0], f.key)
		c.New.SlowPath = c.New.SlowPath || s.optOuts.namespaces[c.New.Service.Namespace]
		if c.New.IPVS && f.claims[0].port.endpoints[FamilyOf(f.key.Addr())].weighted {
			c.New.Scheduler, _ = s.config.Scheduler(c.New.Scheduler, true) // valid
		}
	}
	if c.Old == c.New || c.Old != nil && c.New != nil && *c.Old == *c.New {
		return c, false
	}
	s.countBalancer(c.Old, -1)
	s.countBalancer(c.New, 1)
	f.reported = c.New
	return c, true
}

// frontend builds the Frontend of the winning claim.
func (s *State) frontend(c claim, key FrontendKey) *Frontend {
	spec, family := c.port.service.spec, FamilyOf(key.Addr())
	pools := &c.port.endpoints[family].pools
	scope, _ := spec.policy.scopes(c.kind)
	kind, fromOutside := s.poolKinds(spec, c.kind, key.Addr())
	f := &Frontend{
		FrontendKey: key,
		Kind:        c.kind,
		Service:     c.port.name,
		Pool:        pools[kind].id,
		Scope:       scope,
		LocalPool:   NoPool,
		Affinity:    spec.affinity,
		Shared:      c.port.shared,
		SlowPath:    spec.slowPath || key.IsRange(),
		IPVS:        fromOutside&byIPVS != 0,
	}
	if !key.IsRange() {
		f.Limits = c.port.service.limits()
	} else {
		f.Parts = s.parts(c, key)
	}
	if fromOutside != kind {
		f.LocalPool = pools[fromOutside].id
	}
	if spec.passes(c.kind) && pools[fromOutside].backends() == 0 {
		f.Passes, f.LocalPool, f.IPVS, f.Limits = true, pools[passing].id, false, Limits{}
	}
	if f.IPVS {
		f.Scheduler = spec.scheduler
	}
	if c.kind == LoadBalancerIP {
		f.Sources = spec.sources[family]
	}
	return f
}
