// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"slices"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
)

// A frontend is up to six kinds of element: where it leads, whether it is external,
// where traffic from outside goes instead, whether clients keep their backend,
// whether it matters who they are, and who they may be. A change rewrites those that differ: an
// element that stays is never missed by a look-up.

// aspect is one of these kinds.
type aspect struct {
	has   func(*desired.Frontend) bool
	same  func(a, b *desired.Frontend) bool
	write func(*writer, op, *schema, *desired.Frontend)
}

var aspects = []aspect{
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
			w.batch.AddElement(s.table, s.sticky, w.key, w.value, "")
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

// lead writes where a frontend leads.
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

// frontendMember writes that a frontend is in a set.
func (w *writer) frontendMember(op op, s *schema, set *nfnl.Set, f *desired.Frontend) {
	w.key = s.frontendKey(w.key[:0], f.FrontendKey)
	w.member(op, s, set)
}

// sources writes who may connect.
func (w *writer) sources(op op, s *schema, f *desired.Frontend) {
	key := s.frontendKey(nil, f.FrontendKey)
	for _, p := range f.Sources.All() {
		first, last := s.rangeOf(p)
		w.interval(op, s, s.sources, slices.Concat(key, first), slices.Concat(key, last))
	}
}

// eachFrontend writes what is to be deleted or added for a change's frontends of
// one family.
func (w *writer) eachFrontend(s *schema, change *desired.Change, op op) {
	for i := range aspects {
		a := &aspects[i]
		for j := range change.Frontends {
			c := &change.Frontends[j]
			from, to := c.Old, c.New
			if op == add {
				from, to = to, from
			}
			if from == nil || !s.is(from.Addr()) || !a.has(from) || to != nil && a.has(to) && a.same(from, to) {
				continue
			}
			a.write(w, op, s, from)
		}
	}
}
