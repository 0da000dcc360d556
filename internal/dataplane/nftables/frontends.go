// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"slices"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
)

// A frontend has up to six kinds of elements: its pool, membership in external, its pool
// for traffic from outside, its session affinity, membership in restricted, and its
// source ranges. A change rewrites only the elements that differ, so that look-ups never
// miss the others.

// elementKind is one of these kinds.
type elementKind struct {
	has   func(*desired.Frontend) bool
	same  func(a, b *desired.Frontend) bool
	write func(*writer, op, *schema, *desired.Frontend)
}

var elementKinds = []elementKind{
	{
		has: func(*desired.Frontend) bool { return true },
		same: func(a, b *desired.Frontend) bool {
			return a.Pool == b.Pool && a.Scope == b.Scope && a.Service == b.Service
		},
		write: func(w *writer, op op, s *schema, f *desired.Frontend) { w.lead(op, s, f.Scope, f, f.Pool) },
	},
	{
		has:   func(f *desired.Frontend) bool { return f.Kind.External() },
		same:  func(a, b *desired.Frontend) bool { return true },
		write: func(w *writer, op op, s *schema, f *desired.Frontend) { w.frontendMember(op, s, s.external, f) },
	},
	{
		has:   func(f *desired.Frontend) bool { return f.LocalPool != desired.NoPool },
		same:  func(a, b *desired.Frontend) bool { return a.LocalPool == b.LocalPool && a.Service == b.Service },
		write: func(w *writer, op op, s *schema, f *desired.Frontend) { w.lead(op, s, desired.Local, f, f.LocalPool) },
	},
	{
		has:  func(f *desired.Frontend) bool { return f.Affinity != 0 },
		same: func(a, b *desired.Frontend) bool { return a.Affinity == b.Affinity && a.Service == b.Service },
		write: func(w *writer, op op, s *schema, f *desired.Frontend) {
			w.key = s.frontendKey(w.key[:0], f.FrontendKey)
			if op == del {
				w.batch.DeleteElement(s.table, s.sticky, w.key)
				return
			}
			w.value = stickyValue(w.value[:0], f)
			w.batch.AddElement(s.table, s.sticky, w.key, w.value, f.Service.String())
		},
	},
	{
		has:   func(f *desired.Frontend) bool { return f.Sources != nil },
		same:  func(a, b *desired.Frontend) bool { return true },
		write: func(w *writer, op op, s *schema, f *desired.Frontend) { w.frontendMember(op, s, s.restricted, f) },
	},
	{
		has:   func(f *desired.Frontend) bool { return f.Sources != nil },
		same:  func(a, b *desired.Frontend) bool { return a.Sources == b.Sources },
		write: (*writer).sources,
	},
}

// lead writes the pool of a frontend in a scope.
func (w *writer) lead(op op, s *schema, scope desired.Scope, f *desired.Frontend, pool desired.PoolID) {
	set := s.sides[scope].frontends
	w.key = s.frontendKey(w.key[:0], f.FrontendKey)
	if op == del {
		w.batch.DeleteElement(s.table, set, w.key)
		return
	}
	w.value = secondWord(w.value[:0], w.number(pool))
	w.batch.AddElement(s.table, set, w.key, w.value, f.Service.String())
}

// frontendMember adds a frontend to a set or deletes it.
func (w *writer) frontendMember(op op, s *schema, set *nfnl.Set, f *desired.Frontend) {
	w.key = s.frontendKey(w.key[:0], f.FrontendKey)
	w.member(op, s, set)
}

// sources writes the source ranges of a frontend.
func (w *writer) sources(op op, s *schema, f *desired.Frontend) {
	key := s.frontendKey(nil, f.FrontendKey)
	for _, p := range f.Sources.All() {
		first, last := s.rangeOf(p)
		w.interval(op, s, s.sources, slices.Concat(key, first), slices.Concat(key, last))
	}
}

// eachFrontend writes the elements to delete or to add for a change's frontends of one
// family.
func (w *writer) eachFrontend(s *schema, change *desired.Change, op op) {
	for i := range elementKinds {
		kind := &elementKinds[i]
		for j := range change.Frontends {
			c := &change.Frontends[j]
			from, to := c.Old, c.New
			if op == add {
				from, to = to, from
			}
			if from == nil || !s.is(from.Addr()) || !kind.has(from) || to != nil && kind.has(to) && kind.same(from, to) {
				continue
			}
			kind.write(w, op, s, from)
		}
	}
}
