// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"slices"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
)

// op is the operation on an element.
type op bool

const (
	add op = true
	del op = false
)

// of returns the part of a change that the operation applies to.
func of[T any](op op, added, removed T) T {
	if op == add {
		return added
	}
	return removed
}

// writer encodes elements. It reuses its buffers.
type writer struct {
	batch       *nfnl.Batch
	key, value  []byte
	base        uint32 // the kernel's number for the pool with ID 0
	poolUpdates []poolUpdate
}

// poolUpdate is the difference to write for one pool.
type poolUpdate struct {
	id            desired.PoolID
	schema        *schema
	side          *side
	before, after int // as from drawOf, or noDraw if the pool does not exist
	slots         []dataplane.SlotChange
	all           []desired.Backend // instead of slots for a new pool: its backends in order of slots

	removed, added []desired.Backend // only for a pool with affinity
}

// element adds the element with w.key and w.value to a set or map, or deletes it.
func (w *writer) element(op op, s *schema, set *nfnl.Set, comment string) {
	if op == add {
		w.batch.AddElement(s.table, set, w.key, w.value, comment)
	} else {
		w.batch.DeleteElement(s.table, set, w.key)
	}
}

func (w *writer) member(op op, s *schema, set *nfnl.Set) {
	w.value = w.value[:0]
	w.element(op, s, set, "")
}

func (w *writer) interval(op op, s *schema, set *nfnl.Set, first, last []byte) {
	if op == add {
		w.batch.AddInterval(s.table, set, first, last)
	} else {
		w.batch.DeleteInterval(s.table, set, first, last)
	}
}

// number returns a pool's number in the kernel.
func (w *writer) number(id desired.PoolID) uint32 { return w.base + uint32(id) }

func (w *writer) poolKey(id desired.PoolID) []byte {
	w.key = number(w.key[:0], w.number(id))
	return w.key
}

func (w *writer) endpointKey(id desired.PoolID, slot int) []byte {
	w.key = number(w.poolKey(id), uint32(slot))
	return w.key
}

// write writes the elements to delete or to add for one family. Consecutive elements of one
// set share a message.
func (w *writer) write(op op, s *schema, change *desired.Change) {
	w.frontends(op, s, change)
	w.pools(op, s)
	for _, a := range of(op, change.ClusterIPs.Added, change.ClusterIPs.Removed) {
		if s.is(a) {
			w.key = s.addr(w.key[:0], a.As16())
			w.member(op, s, s.clusterIPs)
		}
	}
	for _, a := range of(op, change.HairpinIPs.Added, change.HairpinIPs.Removed) {
		if s.is(a) {
			w.key = s.addr(s.addr(w.key[:0], a.As16()), a.As16())
			w.member(op, s, s.hairpin)
		}
	}
	for _, a := range of(op, change.NodeAddresses.Added, change.NodeAddresses.Removed) {
		if s.is(a) {
			w.key = s.addr(w.key[:0], a.As16())
			w.member(op, s, s.nodeAddresses)
		}
	}
	for _, p := range of(op, change.ServiceCIDRs.Added, change.ServiceCIDRs.Removed) {
		if s.is(p.Addr()) {
			first, last := s.rangeOf(p)
			w.interval(op, s, s.serviceCIDRs, first, last)
		}
	}
	for _, p := range of(op, change.RefusedNodePorts.Added, change.RefusedNodePorts.Removed) {
		if p.Family == s.family {
			w.key = s.nodePortKey(w.key[:0], p.Protocol, p.Port)
			w.member(op, s, s.loopback)
		}
	}
}

// pools writes the elements of pools.
func (w *writer) pools(op op, s *schema) {
	updates := func(yield func(*poolUpdate) bool) {
		for i := range w.poolUpdates {
			if r := &w.poolUpdates[i]; r.schema == s && !yield(r) {
				return
			}
		}
	}
	for r := range updates {
		if draw := of(op, r.after, r.before); draw != noDraw && r.after != r.before {
			w.poolKey(r.id)
			w.value = number(secondWord(w.value[:0], keyOfPicks(draw)), uint32(int32(draw)))
			w.element(op, s, s.pools, "")
		}
	}
	for r := range updates {
		if op == add {
			for slot, b := range r.all {
				w.slot(op, r, slot, b)
			}
		}
		for i := range r.slots {
			if c := &r.slots[i]; of(op, c.Has, c.Had) {
				w.slot(op, r, c.Slot, of(op, c.New, c.Old))
			}
		}
	}
	for r := range updates {
		for _, b := range of(op, r.added, r.removed) {
			w.key = s.memberKey(w.key[:0], w.number(r.id), b)
			w.member(op, s, s.members)
		}
	}
}

func (w *writer) slot(op op, r *poolUpdate, slot int, b desired.Backend) {
	if b == dataplane.Elsewhere {
		return
	}
	w.endpointKey(r.id, slot)
	w.value = r.schema.endpointValue(w.value[:0], b)
	w.element(op, r.schema, r.side.endpoints, "")
}

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
		if f.Kind.External() && !f.OnNode() {
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
			e = element{set: s.sideOf(f.FrontendKey, f.Scope).sticky, value: [4]uint32{0, service, port, f.Affinity}, words: 4, service: f.Service}
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
	return element{set: s.sideOf(f.FrontendKey, scope).frontends, value: [4]uint32{1: w.number(pool)}, words: 2, service: f.Service}
}

// sideOf returns the side of a frontend's pool in a scope.
func (s *schema) sideOf(k desired.FrontendKey, scope desired.Scope) *side {
	if k.OnNode() {
		return &s.node[scope]
	}
	return &s.sides[scope]
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
