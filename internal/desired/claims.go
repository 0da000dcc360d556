// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
)

// frontend is a frontend and the Service ports that claim it. More than one is
// a mistake of somebody's (the API server prevents it for ClusterIPs and
// NodePorts, but not for other addresses). The first kind of address has it,
// so that nobody can take a ClusterIP away; among those of one kind the oldest
// Service, by creation time and then by name, as the outcome must not depend on
// the order in which objects come.
type frontend struct {
	key    FrontendKey
	claims []claim // the first one has the frontend
	told   *Frontend
	dirty  bool

	contest [2]ServicePort // who had it and who did not, as last told
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

// eachClaim calls do for every frontend that a spec's ports want.
func (s *State) eachClaim(spec *serviceSpec, ports []*port, do func(FrontendKey, AddressKind, *port)) {
	for _, p := range ports {
		for _, ip := range spec.clusterIPs {
			do(frontendKey(ip, p.number, p), ClusterIP, p)
		}
		for _, a := range spec.external {
			do(frontendKey(a.ip, p.number, p), a.kind, p)
		}
		if p.nodePort != 0 {
			for _, ip := range s.nodePortAddrs {
				if spec.has(FamilyOf(ip)) {
					do(frontendKey(ip, p.nodePort, p), NodePort, p)
				}
			}
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
	f.claims = append(f.claims, claim{kind, p, p.service.spec.created})
	slices.SortFunc(f.claims, claim.compare)
	if has := f.claims[0].port; len(f.claims) > 1 {
		loser := p
		if loser == has {
			loser = f.claims[1].port
		}
		if contest := [2]ServicePort{has.name, loser.name}; loser.service != has.service && f.contest != contest {
			f.contest = contest
			s.problems = append(s.problems, Problem{
				Object: "Service " + loser.name.Namespace + "/" + loser.name.Name,
				Field:  "spec.ports",
				Reason: fmt.Sprintf("%s belongs to Service %s as its %s", key, has.name, f.claims[0].kind),
			})
		}
	}
	s.dirtyFrontend(f)
}

func (s *State) unclaim(key FrontendKey, kind AddressKind, p *port) {
	f := s.frontends[key]
	i := slices.IndexFunc(f.claims, func(c claim) bool { return c.port == p && c.kind == kind })
	f.claims = slices.Delete(f.claims, i, i+1)
	s.dirtyFrontend(f)
}

func (s *State) dirtyFrontend(f *frontend) {
	if !f.dirty {
		f.dirty = true
		s.dirtyFrontends = append(s.dirtyFrontends, f)
	}
}

// change brings what is told up to date and returns the difference.
func (f *frontend) change() (FrontendChange, bool) {
	c := FrontendChange{Old: f.told}
	if len(f.claims) < 2 {
		f.contest = [2]ServicePort{}
	}
	if len(f.claims) > 0 {
		c.New = f.claims[0].frontend(f.key)
	}
	if c.Old == c.New || c.Old != nil && c.New != nil && *c.Old == *c.New {
		return c, false
	}
	f.told = c.New
	return c, true
}

// frontend is what a claim makes of a frontend.
func (c claim) frontend(key FrontendKey) *Frontend {
	spec, family := c.port.service.spec, FamilyOf(key.Addr())
	scope, fromOutside := spec.policy.scopes(c.kind)
	f := &Frontend{
		FrontendKey: key,
		Kind:        c.kind,
		Service:     c.port.name,
		Pool:        c.port.pools[family][scope].id,
		Scope:       scope,
		LocalPool:   NoPool,
		Affinity:    spec.affinity,
	}
	if fromOutside != scope {
		f.LocalPool = c.port.pools[family][fromOutside].id
	}
	if c.kind == LoadBalancerIP {
		f.Sources = spec.sources[family]
	}
	return f
}
