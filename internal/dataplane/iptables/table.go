// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// table is the state of one family.
type table struct {
	family desired.Family

	cluster, external, local, hairpin tree
	node, inside, outside             tree                // of NodePorts
	forward, refused                  tree                // of the table filter
	known                             map[string]registry // chains that the kernel has, by table
	members                           [setKinds]int       // how many each set has
	read                              map[string]*saved   // by Read, for Rules, by table
}

// forget resets the table, as if the kernel had nothing.
func (t *table) forget(v Variant) {
	cluster, external, node := branches(v)
	*t = table{
		family:   t.family,
		cluster:  tree{name: chainServices, direction: "-d", branches: cluster},
		external: tree{name: chainExternalTree, direction: "-d", branches: external},
		local:    tree{name: chainLocalTree, direction: "-d", branches: external},
		hairpin:  tree{name: chainHairpinTree, direction: "-s", branches: cluster},
		node:     tree{name: chainNodeTree, branches: node},
		inside:   tree{name: chainInsideTree, branches: node},
		outside:  tree{name: chainOutsideTree, branches: node},
		refused:  tree{name: chainRefusedTree, branches: node},
		forward:  tree{name: chainForwardTree, direction: "-s", branches: cluster},
		known:    map[string]registry{},
	}
	for _, name := range chainTables {
		t.known[name] = registry{}
	}
}

// step is a change for one family.
type step struct {
	table *table
	sets  setWrites
	pools []*pool

	scripts map[string]*script // by table
}

// newScripts returns empty scripts for all tables. Known are the kernel's chains.
func newScripts(known map[string]registry) map[string]*script {
	all := map[string]*script{}
	for name, chains := range known {
		all[name] = &script{known: chains, now: registry{}}
	}
	return all
}

// write writes the chains that follow the content.
func (s *step) write() {
	t, out := s.table, s.scripts[tableNAT]
	for _, p := range s.pools {
		p.write(out)
	}
	for _, tr := range []*tree{&t.cluster, &t.external, &t.local, &t.hairpin, &t.node, &t.inside, &t.outside} {
		tr.write(out)
	}
	t.forward.write(s.scripts[tableFilter])
	t.refused.write(s.scripts[tableFilter])
}

// touch marks the pool's chains for writing.
func (s *step) touch(p *pool) {
	if !p.dirty {
		p.dirty = true
		s.pools = append(s.pools, p)
	}
}

// record records a change, and returns a step for each family that writes it.
func (b *Dataplane) record(change *desired.Change) []*step {
	steps := make([]*step, len(families))
	for _, f := range families {
		steps[f] = &step{table: &table{family: f}} // not written unless the family is served
	}
	for _, t := range b.tables {
		steps[t.family].table = t
	}
	stale := map[desired.FrontendKey]bool{} // frontends whose memberships may differ
	for i := range change.Pools {
		b.takePool(&change.Pools[i], steps[change.Pools[i].Family], stale)
	}
	for _, c := range change.Frontends {
		b.takeFrontend(c, steps[desired.FamilyOf(c.Key().Addr())])
		delete(stale, c.Key())
	}
	for key := range stale {
		if f := b.frontends[key]; f != nil {
			was := *f
			f.in = b.memberships(f.Frontend)
			s := steps[desired.FamilyOf(key.Addr())]
			s.update(&was, f)
		}
	}
	for i := range change.Pools {
		if c := &change.Pools[i]; c.Gone {
			b.pools.Set(c.ID, nil)
		}
	}
	for _, s := range steps {
		s.sets.addresses(s.table.family, change)
		s.hairpins(change.Sets[desired.HairpinIPs])
	}
	return slices.DeleteFunc(steps, func(s *step) bool { return !slices.Contains(b.tables, s.table) })
}

func (b *Dataplane) takePool(c *desired.PoolChange, s *step, stale map[desired.FrontendKey]bool) {
	p := b.pools.Get(c.ID)
	if c.New {
		p = &pool{Pool: dataplane.NewPool(c)}
		b.pools.Set(c.ID, p)
		if other := b.pools.Get(c.Sibling); other != nil && other.Service == c.Service && other.Scope != c.Scope {
			p.sibling, other.sibling = other, p
		}
	}
	wasEmpty, was := len(p.Slots) == 0, p.IfEmpty
	p.weights = p.weights.After(p.Slots, c)
	p.shares = p.weights.Slots()
	p.replace(c.Removed, c.Added)
	p.IfEmpty = c.IfEmpty
	s.touch(p)
	if wasEmpty != (len(p.Slots) == 0) || was != p.IfEmpty {
		for _, f := range p.Frontends {
			stale[f.FrontendKey] = true
		}
	}
}

func (b *Dataplane) takeFrontend(c desired.FrontendChange, s *step) {
	was := b.frontends[c.Key()]
	if c.Old != nil {
		s.writeFrontendRule(c.Old, true, b)
		for _, id := range c.Old.Pools() {
			if p := b.pools.Get(id); p != nil {
				p.Unrefer(c.Key())
				s.touch(p)
			}
		}
		delete(b.frontends, c.Key())
	}
	var is *frontend
	if c.New != nil {
		for _, id := range c.New.Pools() {
			p := b.pools.Get(id)
			p.Refer(c.New)
			s.touch(p)
		}
		s.writeFrontendRule(c.New, false, b)
		is = &frontend{Frontend: c.New, in: b.memberships(c.New)}
		b.frontends[c.Key()] = is
	}
	s.update(was, is)
}

// update writes the changes of a frontend's memberships. Either may be nil. For a NodePort without
// backends there is a rule instead.
func (s *step) update(was, is *frontend) {
	s.sets.update(was, is)
	f := cmp.Or(is, was)
	if f == nil || !f.OnNode() || was != nil && is != nil && was.in == is.in && was.Service == is.Service {
		return
	}
	to := ""
	switch {
	case is == nil:
	case is.in[setReject]:
		to = chainNodeReject
	case is.in[setDrop]:
		to = chainNodeDrop
	}
	s.table.refused.edit(frontendTreeKey(f.FrontendKey), matchFrontend(f.FrontendKey)+comment(f.Service)+" -g "+to, to == "")
}

// writeFrontendRule edits the rules of a frontend, for pools that have chains.
func (s *step) writeFrontendRule(f *desired.Frontend, gone bool, b *Dataplane) {
	key := frontendTreeKey(f.FrontendKey)
	set := func(t *tree, id desired.PoolID) {
		p, rule := b.pools.Get(id), ""
		if !gone {
			rule = matchFrontend(f.FrontendKey) + comment(f.Service) + " -g " + p.name()
		}
		t.edit(key, rule, gone)
	}
	t := s.table
	switch onNode, local := f.OnNode(), f.LocalPool != desired.NoPool; {
	case onNode && local:
		set(&t.inside, f.Pool)
		set(&t.outside, f.LocalPool)
	case onNode:
		set(&t.node, f.Pool)
	case local:
		set(&t.external, f.Pool)
		set(&t.local, f.LocalPool)
	case f.Kind.External():
		set(&t.external, f.Pool)
	default:
		set(&t.cluster, f.Pool)
	}
}

// comment is a rule's comment that names a Service's port.
func comment(p desired.ServicePort) string {
	return fmt.Sprintf(` -m comment --comment "%s"`, strings.Map(func(r rune) rune {
		if r == '"' || r == '\\' || r < ' ' {
			return '?'
		}
		return r
	}, p.String()))
}

// hairpins edits the rules that masquerade and accept packets of endpoints to themselves.
func (s *step) hairpins(c desired.SetChange) {
	for m, add := range c.All() {
		a := m.Addr
		if m.Family() != s.table.family {
			continue
		}
		match, key := fmt.Sprintf("-s %s/%d -d %[1]s/%d", a, a.BitLen()), addrTreeKey(a)
		s.table.hairpin.edit(key, match+" -g "+chainMasquerade, !add)
		s.table.forward.edit(key, match+" -j ACCEPT", !add)
	}
}
