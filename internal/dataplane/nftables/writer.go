// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"net/netip"
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

	// keys are in the sets, for Check, with their values: all in those that are small, and some in those that pools
	// have; nil if they are not kept.
	keys [len(schemas)]map[*nfnl.Set]map[string]string
}

// poolUpdate is the difference to write for one pool.
type poolUpdate struct {
	id            desired.PoolID
	schema        *schema
	scopeSets     *scopeSets
	before, after int // as from selectorOf, or noSelector if the pool does not exist
	slots         []dataplane.SlotChange
	all           []desired.Backend // instead of slots for a new pool: its backends in order of slots

	removed, added []desired.Backend // only for a pool with affinity
	shared         bool              // they are partners
}

// element adds the element with w.key and w.value to a set or map, or deletes it.
func (w *writer) element(op op, s *schema, set *nfnl.Set, comment string) {
	w.record(op, s, set, w.key, w.value)
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

// record keeps keys for Check.
func (w *writer) record(op op, s *schema, set *nfnl.Set, key, value []byte) {
	keys := w.keys[s.family][set]
	switch {
	case w.keys[s.family] == nil:
	case op != add:
		delete(keys, string(key))
	case keys == nil:
		w.keys[s.family][set] = map[string]string{string(key): string(value)}
	case len(keys) < sampleSize, set == s.nodeAddresses, set == s.serviceCIDRs, set == s.hairpin, set == s.loopback: // small, and no pool leads to their elements
		keys[string(key)] = string(value)
	}
}

func (w *writer) interval(op op, s *schema, set *nfnl.Set, first, last []byte, value ...byte) {
	w.record(op, s, set, first, value)
	if op == add {
		w.batch.AddInterval(s.table, set, first, last, value...)
	} else {
		w.batch.DeleteInterval(s.table, set, first, last)
	}
}

// number returns a pool's number in the kernel.
func (w *writer) number(id desired.PoolID) uint32 { return w.base + uint32(id) }

// write writes the elements to delete or to add for one family. Consecutive elements of one set share a message.
func (w *writer) write(op op, s *schema, change *desired.Change) {
	w.frontends(op, s, change)
	w.pools(op, s)
	for set := range desired.Programmed {
		for _, m := range of(op, change.Sets[set].Added, change.Sets[set].Removed) {
			if s.is(m.Addr) {
				w.setMember(op, s, set, m)
			}
		}
	}
}

// setMember writes a member of a set.
func (w *writer) setMember(op op, s *schema, set desired.Set, m desired.Member) {
	w.key = s.addr(w.key[:0], m.Addr.As16())
	switch set {
	case desired.ClusterIPs:
		w.member(op, s, s.clusterIPs)
	case desired.NodeAddresses:
		w.member(op, s, s.nodeAddresses)
	case desired.HairpinIPs:
		w.key = s.addr(w.key, m.Addr.As16())
		w.member(op, s, s.hairpin)
	case desired.RefusedNodePorts:
		w.key = nfnl.AppendPort(w.key[:0], uint8(m.Protocol), m.Port)
		w.member(op, s, s.loopback)
	case desired.ServiceCIDRs:
		first, last := nfnl.Bounds(m.Prefix())
		w.interval(op, s, s.serviceCIDRs, first, last)
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
		if selector := of(op, r.after, r.before); selector != noSelector && r.after != r.before {
			w.key = number(w.key[:0], w.number(r.id))
			key := selectorKey(selector)
			if r.shared && key == stickySelector {
				key |= sharedSelector
			}
			w.value = number(secondWord(w.value[:0], key), uint32(int32(selector)))
			w.element(op, s, r.scopeSets.pools, "")
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
			if r.shared {
				w.key, w.value = s.partnerKey(w.key[:0], w.number(r.id), b), s.endpointValue(w.value[:0], b)
				w.element(op, s, s.partners, "")
				continue
			}
			w.key = s.memberKey(w.key[:0], w.number(r.id), b)
			w.member(op, s, s.members)
		}
	}
}

func (w *writer) slot(op op, r *poolUpdate, slot int, b desired.Backend) {
	w.key = number(number(w.key[:0], w.number(r.id)), uint32(slot))
	w.value = r.schema.endpointValue(w.value[:0], b)
	w.element(op, r.schema, r.scopeSets.endpoints, "")
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
// rewrites only the elements that differ, so that look-ups never miss the others. Those of ranges are portRange's.
var elementKinds = []func(*writer, *schema, *desired.Frontend) element{
	func(w *writer, s *schema, f *desired.Frontend) element {
		return w.frontendElement(s, f.Scope, f, f.Pool)
	},
	func(_ *writer, s *schema, f *desired.Frontend) (e element) {
		if f.Kind.External() && !f.OnNode() {
			e.set = s.external
		}
		return e
	},
	func(w *writer, s *schema, f *desired.Frontend) (e element) {
		if f.LocalPool != desired.NoPool {
			e = w.frontendElement(s, desired.Local, f, f.LocalPool)
		}
		return e
	},
	func(_ *writer, s *schema, f *desired.Frontend) (e element) {
		if affinityOf(f) != 0 {
			service, port := affinityID(f.Service, f.Protocol, f.Shared)
			e = element{set: s.setsOf(f.FrontendKey, f.Scope).sticky, value: [4]uint32{0, service, port, affinityOf(f)}, words: 4, service: f.Service}
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

// frontendElement returns the element with the pool of a frontend in a scope.
func (w *writer) frontendElement(s *schema, scope desired.Scope, f *desired.Frontend, pool desired.PoolID) element {
	return element{set: s.setsOf(f.FrontendKey, scope).frontends, value: [4]uint32{1: w.number(pool)}, words: 2, service: f.Service}
}

// setsOf returns the sets for a frontend's pool in a scope.
func (s *schema) setsOf(k desired.FrontendKey, scope desired.Scope) *scopeSets {
	if k.OnNode() {
		return &s.nodePortSets[scope]
	}
	return s.setsFor(scope, k.IsRange())
}

// frontend writes an element of a frontend.
func (w *writer) frontend(op op, s *schema, f *desired.Frontend, e element) {
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
			if e.set == nil || e.set == s.ranges || other != nil && e == kind(w, s, other) {
				continue
			}
			w.frontend(op, s, f, e)
		}
	}
	for f, other := range frontends {
		w.portRange(op, s, f, other)
		if f.Sources != nil && (other == nil || f.Sources != other.Sources) {
			w.sources(op, s, f, f.Sources.All())
		}
	}
}

// sources writes ranges of clients that may connect.
func (w *writer) sources(op op, s *schema, f *desired.Frontend, ranges []netip.Prefix) {
	key := s.frontendKey(nil, f.FrontendKey)
	for _, p := range ranges {
		first, last := nfnl.Bounds(p)
		w.interval(op, s, s.sources, slices.Concat(key, first), slices.Concat(key, last))
	}
}
