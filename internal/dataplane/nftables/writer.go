// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"net/netip"

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
	before, after int // as from drawOf
	isNew, gone   bool
	slots         []dataplane.SlotChange
	all           []desired.Backend // instead of slots for a new pool: its backends in order of slots

	removed, added []desired.Backend // only for a pool with affinity
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

func (w *writer) addPool(r *poolUpdate) {
	if r.gone || !r.isNew && r.before == r.after {
		return
	}
	w.value = secondWord(w.value[:0], uint32(int32(r.after)))
	w.batch.AddElement(r.schema.table, r.schema.pools, w.poolKey(r.id), w.value, "")
}

func (w *writer) deletePool(r *poolUpdate) {
	if r.isNew || !r.gone && r.before == r.after {
		return
	}
	w.batch.DeleteElement(r.schema.table, r.schema.pools, w.poolKey(r.id))
}

func (w *writer) addSlots(r *poolUpdate) {
	for i, e := range r.all {
		w.addSlot(r, i, e)
	}
	for _, c := range r.slots {
		if c.Has {
			w.addSlot(r, c.Slot, c.New)
		}
	}
}

func (w *writer) addSlot(r *poolUpdate, slot int, e desired.Backend) {
	w.value = r.schema.endpointValue(w.value[:0], e)
	w.batch.AddElement(r.schema.table, r.side.endpoints, w.endpointKey(r.id, slot), w.value, "")
}

func (w *writer) deleteSlots(r *poolUpdate) {
	for _, c := range r.slots {
		if c.Had {
			w.batch.DeleteElement(r.schema.table, r.side.endpoints, w.endpointKey(r.id, c.Slot))
		}
	}
}

func (w *writer) deleteMembers(r *poolUpdate) { w.eachMember(del, r, r.removed) }

func (w *writer) addMembers(r *poolUpdate) {
	if !r.gone {
		w.eachMember(add, r, r.added)
	}
}

func (w *writer) eachMember(op op, r *poolUpdate, all []desired.Backend) {
	for _, e := range all {
		w.key = r.schema.memberKey(w.key[:0], w.number(r.id), e)
		w.member(op, r.schema, r.schema.members)
	}
}

// addresses writes the addresses of one family.
func (w *writer) addresses(op op, s *schema, clusterIPs, hairpinIPs *desired.AddressChange) {
	for _, a := range op.of(clusterIPs) {
		if s.is(a) {
			w.key = s.addr(w.key[:0], a.As16())
			w.member(op, s, s.clusterIPs)
		}
	}
	for _, a := range op.of(hairpinIPs) {
		if s.is(a) {
			w.key = s.hairpinKey(w.key[:0], a)
			w.member(op, s, s.hairpin)
		}
	}
}

// of returns the part of a change that the operation applies to.
func (o op) of(c *desired.AddressChange) []netip.Addr {
	if o == add {
		return c.Added
	}
	return c.Removed
}

// cidrs writes the ServiceCIDRs of one family.
func (w *writer) cidrs(op op, s *schema, all []netip.Prefix) {
	for _, p := range all {
		if s.is(p.Addr()) {
			first, last := s.rangeOf(p)
			w.interval(op, s, s.serviceCIDRs, first, last)
		}
	}
}

func (w *writer) interval(op op, s *schema, set *nfnl.Set, first, last []byte) {
	if op == del {
		w.batch.DeleteInterval(s.table, set, first, last)
	} else {
		w.batch.AddInterval(s.table, set, first, last)
	}
}

func (w *writer) member(op op, s *schema, set *nfnl.Set) {
	if op == del {
		w.batch.DeleteElement(s.table, set, w.key)
	} else {
		w.batch.AddElement(s.table, set, w.key, nil, "")
	}
}
