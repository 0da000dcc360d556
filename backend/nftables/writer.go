// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"net/netip"

	"github.com/slipstream-proxy/slipstream/backend/nftables/nfnl"
	"github.com/slipstream-proxy/slipstream/desired"
)

// op says what to do with an element.
type op bool

const (
	add op = true
	del op = false
)

// writer encodes elements. Its buffers are used again for every element.
type writer struct {
	batch      *nfnl.Batch
	key, value []byte
	base       uint32 // the number of the pool with ID 0
	resized    []resized
}

// resized is what is to be written for one pool.
type resized struct {
	id            desired.PoolID
	schema        *schema
	before, after int // the size to draw below, or dropDraw
	isNew, gone   bool
	slots         []slotChange
	fresh         []desired.Backend // instead of slots, when the pool is new: all of them
}

// number is a pool's number in the kernel.
func (w *writer) number(id desired.PoolID) uint32 { return w.base + uint32(id) }

func (w *writer) poolKey(id desired.PoolID) []byte {
	w.key = number(w.key[:0], w.number(id))
	return w.key
}

func (w *writer) endpointKey(id desired.PoolID, slot int) []byte {
	w.key = number(w.poolKey(id), uint32(slot))
	return w.key
}

func (w *writer) frontend(op op, f *desired.Frontend) {
	s := &schemas[desired.FamilyOf(f.Addr())]
	w.key = s.frontendKey(w.key[:0], f.FrontendKey)
	if op == del {
		w.batch.DeleteElement(s.table, s.frontends, w.key)
		return
	}
	w.value = secondWord(w.value[:0], w.number(f.Pool))
	w.batch.AddElement(s.table, s.frontends, w.key, w.value, f.Service.String())
}

func (w *writer) addPool(r *resized) {
	if r.gone || !r.isNew && r.before == r.after {
		return
	}
	w.value = secondWord(w.value[:0], uint32(int32(r.after)))
	w.batch.AddElement(r.schema.table, r.schema.pools, w.poolKey(r.id), w.value, "")
}

func (w *writer) deletePool(r *resized) {
	if r.isNew || !r.gone && r.before == r.after {
		return
	}
	w.batch.DeleteElement(r.schema.table, r.schema.pools, w.poolKey(r.id))
}

func (w *writer) addSlots(r *resized) {
	for i, e := range r.fresh {
		w.addSlot(r, i, e)
	}
	for _, c := range r.slots {
		if c.has {
			w.addSlot(r, c.slot, c.new)
		}
	}
}

func (w *writer) addSlot(r *resized, slot int, e desired.Backend) {
	w.value = r.schema.endpointValue(w.value[:0], e)
	w.batch.AddElement(r.schema.table, r.schema.endpoints, w.endpointKey(r.id, slot), w.value, "")
}

func (w *writer) deleteSlots(r *resized) {
	for _, c := range r.slots {
		if c.had {
			w.batch.DeleteElement(r.schema.table, r.schema.endpoints, w.endpointKey(r.id, c.slot))
		}
	}
}

// addresses writes the addresses of one family.
func (w *writer) addresses(op op, s *schema, clusterIPs, hairpinIPs []netip.Addr) {
	for _, a := range clusterIPs {
		if s.is(a) {
			w.key = s.addr(w.key[:0], a.As16())
			w.member(op, s, s.clusterIPs)
		}
	}
	for _, a := range hairpinIPs {
		if s.is(a) {
			w.key = s.hairpinKey(w.key[:0], a)
			w.member(op, s, s.hairpin)
		}
	}
}

func (w *writer) member(op op, s *schema, set *nfnl.Set) {
	if op == del {
		w.batch.DeleteElement(s.table, set, w.key)
	} else {
		w.batch.AddElement(s.table, set, w.key, nil, "")
	}
}
