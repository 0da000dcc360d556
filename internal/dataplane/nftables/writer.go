// SPDX-License-Identifier: Apache-2.0

package nftables

import (
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
	for _, p := range of(op, change.ServiceCIDRs.Added, change.ServiceCIDRs.Removed) {
		if s.is(p.Addr()) {
			first, last := s.rangeOf(p)
			w.interval(op, s, s.serviceCIDRs, first, last)
		}
	}
	for _, p := range of(op, change.RefusedNodePorts.Added, change.RefusedNodePorts.Removed) {
		if p.Family == s.family {
			w.key = port(append(w.key[:0], byte(p.Protocol), 0, 0, 0), p.Port)
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
			w.value = secondWord(w.value[:0], uint32(int32(draw)))
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
