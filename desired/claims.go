// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"cmp"
	"fmt"
	"slices"
)

// frontend is a frontend and the Service ports that claim it. More than one is
// a mistake of somebody's (the API server prevents it for ClusterIPs): the
// oldest Service has it, by creation time and then by name, as the outcome must
// not depend on the order in which objects come.
type frontend struct {
	key    FrontendKey
	claims []claim // the first one has the frontend
	told   *Frontend
	dirty  bool
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
		cmp.Compare(a.created, b.created),
		cmp.Compare(a.port.name.Namespace, b.port.name.Namespace),
		cmp.Compare(a.port.name.Name, b.port.name.Name),
		cmp.Compare(a.port.name.Port, b.port.name.Port),
	)
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
		s.problems = append(s.problems, Problem{
			Object: "Service " + loser.name.Namespace + "/" + loser.name.Name,
			Field:  "spec.ports",
			Reason: fmt.Sprintf("%s belongs to the older Service %s", key, has.name),
		})
	}
	s.dirtyFrontend(f)
}

func (s *State) unclaim(key FrontendKey, p *port) {
	f := s.frontends[key]
	i := slices.IndexFunc(f.claims, func(c claim) bool { return c.port == p })
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
	if len(f.claims) > 0 {
		has := f.claims[0]
		c.New = &Frontend{
			FrontendKey: f.key,
			Kind:        has.kind,
			Service:     has.port.name,
			Pool:        has.port.pools[FamilyOf(f.key.Addr())].id,
		}
	}
	if c.Old == c.New || c.Old != nil && c.New != nil && *c.Old == *c.New {
		return c, false
	}
	f.told = c.New
	return c, true
}
