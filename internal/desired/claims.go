// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// frontend is a frontend and the Service ports that claim it. More than one claim
// is a conflict between Services. (The API server prevents conflicts of ClusterIPs
// and NodePorts, but not of other addresses.) The claim with the lowest AddressKind
// wins, so that no external IP can take over a ClusterIP. Among claims of one kind,
// the oldest Service wins, by creation time and then by name, so that the outcome does
// not depend on the order of events.
type frontend struct {
	key      FrontendKey
	claims   []claim // in order of precedence; the first one wins
	reported *Frontend
	dirty    bool

	contest *[2]ServicePort // winner and loser of the last conflict that was reported; nil for none
}

type claim struct {
	kind AddressKind
	port *port
	// The spec's creation time is kept here since the spec is replaced
	// before its claims are.
	created int64
}

func (a claim) compare(b claim) int {
	return cmp.Or(
		cmp.Compare(a.kind, b.kind),
		cmp.Compare(a.created, b.created),
		cmp.Compare(a.port.name.Namespace, b.port.name.Namespace),
		cmp.Compare(a.port.name.Name, b.port.name.Name),
		cmp.Compare(a.port.name.Port, b.port.name.Port),
	)
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
		if s.config.NodePortsByAddress {
			spec.eachNodePort(p, s.nodePortAddrs, do)
		} else {
			spec.eachNodePort(p, unspecified[:], do)
		}
		s.eachRelay(spec, p, do)
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
	return FrontendKey{netip.AddrPortFrom(ip, number), p.protocol}
}

func (s *State) claim(key FrontendKey, kind AddressKind, p *port) {
	f := s.frontends[key]
	if f == nil {
		f = &frontend{key: key}
		s.frontends[key] = f
	}
	s.countContested(f, -1)
	f.claims = append(f.claims, claim{kind, p, p.service.spec.created})
	slices.SortFunc(f.claims, claim.compare)
	s.countContested(f, 1)
	if winner := f.claims[0].port; len(f.claims) > 1 {
		loser := p
		if loser == winner {
			loser = f.claims[1].port
		}
		s.reportContest(f, loser)
	}
	for e, nodePort := range s.overrides(f) {
		s.reportContest(e, nodePort.claims[0].port)
	}
	s.dirtyFrontend(f)
}

// reportContest reports that a port does not have a frontend that it claims, unless that is what
// was reported last.
func (s *State) reportContest(f *frontend, loser *port) {
	winner := f.claims[0].port
	contest := [2]ServicePort{winner.name, loser.name}
	if loser.service == winner.service || f.contest != nil && *f.contest == contest {
		return
	}
	f.contest = &contest
	problem := problemOf(loser.service.name, "spec.ports", fmt.Sprintf("%s belongs to Service %s as its %s", f.key, winner.name, f.claims[0].kind))
	problem.Contested = true
	s.problems = append(s.problems, problem)
}

func (s *State) unclaim(key FrontendKey, kind AddressKind, p *port) {
	f := s.frontends[key]
	i := slices.IndexFunc(f.claims, func(c claim) bool { return c.port == p && c.kind == kind })
	s.countContested(f, -1)
	f.claims = slices.Delete(f.claims, i, i+1)
	s.countContested(f, 1)
	s.dirtyFrontend(f)
}

// countContested adds n to the count of each Service that does not have the frontend although
// it claims it.
func (s *State) countContested(f *frontend, n int) {
	for i := range f.claims {
		if i > 0 {
			s.countLoser(f, f.claims[i], n)
		}
	}
	for e, nodePort := range s.overrides(f) {
		s.countOverridden(e, nodePort, n)
	}
}

// countOverridden does so for a NodePort that has another frontend beside it (see beside).
func (s *State) countOverridden(f, nodePort *frontend, n int) {
	for _, c := range nodePort.claims {
		s.countLoser(f, c, n)
	}
}

func (s *State) countLoser(f *frontend, c claim, n int) {
	if c.port.service == f.claims[0].port.service {
		return
	}
	name := c.port.service.name
	s.contestedDiffers = true
	if s.contested[name] += n; s.contested[name] == 0 {
		delete(s.contested, name)
	}
}

// Contested returns the number of frontends that Services claim and do not have because
// another Service has them, by Service, and whether it differs from the last call. The map must
// not be modified, and changes with the State.
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

// frontendChange returns the difference from the last report and marks it as reported.
func (s *State) frontendChange(f *frontend) (FrontendChange, bool) {
	c := FrontendChange{Old: f.reported}
	if len(f.claims) > 0 {
		c.New = f.claims[0].frontend(f.key)
		c.New.SlowPath = c.New.SlowPath || s.optOuts.namespaces[c.New.Service.Namespace]
	}
	if c.Old == c.New || c.Old != nil && c.New != nil && *c.Old == *c.New {
		return c, false
	}
	f.reported = c.New
	return c, true
}

// frontend builds the Frontend of the winning claim.
func (c claim) frontend(key FrontendKey) *Frontend {
	spec, family := c.port.service.spec, FamilyOf(key.Addr())
	pools := &c.port.endpoints[family].pools
	scope, fromOutside := spec.policy.scopes(c.kind)
	f := &Frontend{
		FrontendKey: key,
		Kind:        c.kind,
		Service:     c.port.name,
		Pool:        pools[scope].id,
		Scope:       scope,
		LocalPool:   NoPool,
		Affinity:    spec.affinity,
		SlowPath:    spec.slowPath,
		Scheduler:   spec.scheduler,
	}
	if fromOutside != scope {
		f.LocalPool = pools[fromOutside].id
	}
	if c.kind == LoadBalancerIP {
		f.Sources = spec.sources[family]
	}
	return f
}
