// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"net/netip"

	"github.com/slipstream-proxy/slipstream/backend/nftables/nfnl"
	"github.com/slipstream-proxy/slipstream/desired"
)

// writer encodes elements. Its buffers are used again for every element.
type writer struct {
	batch      *nfnl.Batch
	key, value []byte
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

func (w *writer) number(n uint32) []byte {
	w.key = number(w.key[:0], n)
	return w.key
}

func (w *writer) addFrontend(f *desired.Frontend) {
	s := &schemas[desired.FamilyOf(f.Addr())]
	w.key = s.frontendKey(w.key[:0], f.FrontendKey)
	w.value = secondWord(w.value[:0], uint32(f.Pool))
	w.batch.AddElement(s.table, s.frontends, w.key, w.value, f.Service.String())
}

func (w *writer) deleteFrontend(f *desired.Frontend) {
	s := &schemas[desired.FamilyOf(f.Addr())]
	w.key = s.frontendKey(w.key[:0], f.FrontendKey)
	w.batch.DeleteElement(s.table, s.frontends, w.key)
}

func (w *writer) addPool(r *resized) {
	if r.gone || !r.isNew && r.before == r.after {
		return
	}
	w.value = secondWord(w.value[:0], uint32(int32(r.after)))
	w.batch.AddElement(r.schema.table, r.schema.pools, w.number(uint32(r.id)), w.value, "")
}

func (w *writer) deletePool(r *resized) {
	if r.isNew || !r.gone && r.before == r.after {
		return
	}
	w.batch.DeleteElement(r.schema.table, r.schema.pools, w.number(uint32(r.id)))
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
	w.key = r.schema.endpointKey(w.key[:0], r.id, slot)
	w.value = r.schema.endpointValue(w.value[:0], e)
	w.batch.AddElement(r.schema.table, r.schema.endpoints, w.key, w.value, "")
}

func (w *writer) deleteSlots(r *resized) {
	for _, c := range r.slots {
		if c.had {
			w.key = r.schema.endpointKey(w.key[:0], r.id, c.slot)
			w.batch.DeleteElement(r.schema.table, r.schema.endpoints, w.key)
		}
	}
}

// addresses does something with the element for each address.
func (w *writer) addresses(all []netip.Addr, element func(*schema, []byte, netip.Addr) (*nfnl.Set, []byte), do func(*schema, *nfnl.Set)) {
	for _, a := range all {
		s := &schemas[desired.FamilyOf(a)]
		var set *nfnl.Set
		set, w.key = element(s, w.key[:0], a)
		do(s, set)
	}
}

func (s *schema) clusterIP(b []byte, a netip.Addr) (*nfnl.Set, []byte) {
	return s.clusterIPs, s.addrKey(b, a)
}

func (s *schema) hairpinIP(b []byte, a netip.Addr) (*nfnl.Set, []byte) {
	return s.hairpin, s.hairpinKey(b, a)
}

func (w *writer) add(s *schema, set *nfnl.Set) { w.batch.AddElement(s.table, set, w.key, nil, "") }

func (w *writer) delete(s *schema, set *nfnl.Set) { w.batch.DeleteElement(s.table, set, w.key) }
