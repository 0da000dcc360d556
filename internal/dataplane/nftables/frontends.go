// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"slices"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
)

// element is an element of a frontend in a set of frontends.
type element struct {
	set     *nfnl.Set // nil if the frontend has none
	value   [4]uint32
	words   int                 // of value
	service desired.ServicePort // is written as the comment
}

// elementKinds returns the elements of a frontend: its pool, membership in external, its pool
// for traffic from outside, its session affinity, and membership in restricted. A change
// rewrites only the elements that differ, so that look-ups never miss the others.
var elementKinds = []func(*writer, *schema, *desired.Frontend) element{
	func(w *writer, s *schema, f *desired.Frontend) element { return w.lead(s, f.Scope, f, f.Pool) },
	func(_ *writer, s *schema, f *desired.Frontend) (e element) {
		if f.Kind.External() {
			e.set = s.external
		}
		return e
	},
	func(w *writer, s *schema, f *desired.Frontend) (e element) {
		if f.LocalPool != desired.NoPool {
			e = w.lead(s, desired.Local, f, f.LocalPool)
		}
		return e
	},
	func(_ *writer, s *schema, f *desired.Frontend) (e element) {
		if f.Affinity != 0 {
			service, port := affinityID(f.Service, f.Protocol)
			e = element{set: s.sticky, value: [4]uint32{0, service, port, f.Affinity}, words: 4, service: f.Service}
		}
		return e
	},
	func(_ *writer, s *schema, f *desired.Frontend) (e element) {
		if f.Sources != nil {
			e.set = s.restricted
		}
		return e
	},
}

// lead returns the element with the pool of a frontend in a scope.
func (w *writer) lead(s *schema, scope desired.Scope, f *desired.Frontend, pool desired.PoolID) element {
	return element{set: s.sides[scope].frontends, value: [4]uint32{1: w.number(pool)}, words: 2, service: f.Service}
}

// frontends writes the elements of frontends.
func (w *writer) frontends(op op, s *schema, change *desired.Change) {
	frontends := func(yield func(f, other *desired.Frontend) bool) {
		for i := range change.Frontends {
			c := &change.Frontends[i]
			f, other := of(op, c.New, c.Old), of(op, c.Old, c.New)
			if f != nil && s.is(f.Addr()) && !yield(f, other) {
				return
			}
		}
	}
	for _, kind := range elementKinds {
		for f, other := range frontends {
			e := kind(w, s, f)
			if e.set == nil || other != nil && e == kind(w, s, other) {
				continue
			}
			w.key = s.frontendKey(w.key[:0], f.FrontendKey)
			w.value = w.value[:0]
			for _, n := range e.value[:e.words] {
				w.value = number(w.value, n)
			}
			comment := ""
			if op == add && e.service != (desired.ServicePort{}) {
				comment = e.service.String()
			}
			w.element(op, s, e.set, comment)
		}
	}
	for f, other := range frontends {
		if f.Sources == nil || other != nil && f.Sources == other.Sources {
			continue
		}
		key := s.frontendKey(nil, f.FrontendKey)
		for _, p := range f.Sources.All() {
			first, last := s.rangeOf(p)
			w.interval(op, s, s.sources, slices.Concat(key, first), slices.Concat(key, last))
		}
	}
}
