// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"slices"

	"github.com/slipstream-proxy/slipstream/internal/collect"
	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// Pool is a dataplane's record of a pool in the kernel: which backend is in which slot.
// Slots are numbered from 0 without gaps, so that a random number below the number of slots
// always selects a backend.
type Pool struct {
	Family  desired.Family
	Scope   desired.Scope
	Sticky  bool
	IfEmpty desired.Verdict
	desired.Balance
	Service desired.ServicePort

	Slots     []desired.Backend       // has a backend several times because of weights or a table
	at        map[desired.Backend]int // index of Slots, if there are many; nil before many change
	weights   Weights                 // nil if each backend has one slot and the default weight
	chosen    int                     // how many backends there were when slots were last chosen for all
	spare     []desired.Backend       // added since then, by partial changes
	Frontends []*desired.Frontend     // that refer to the pool, in any order
	places    map[desired.FrontendKey]int
}

// NewPool returns an empty pool that a change describes.
func NewPool(c *desired.PoolChange) Pool {
	return Pool{Family: c.Family, Scope: c.Scope, Sticky: c.Sticky, Service: c.Service, IfEmpty: c.IfEmpty, Balance: c.Balance}
}

// Refer adds a frontend that refers to the pool.
func (p *Pool) Refer(f *desired.Frontend) {
	p.Frontends = append(p.Frontends, f)
	if p.places != nil {
		p.places[f.FrontendKey] = len(p.Frontends) - 1
	}
}

// Unrefer removes the frontend with a key from the frontends that refer to the pool. A Service may have many
// thousands, for which there is an index.
func (p *Pool) Unrefer(key desired.FrontendKey) {
	if p.places == nil && len(p.Frontends) > 32 {
		p.places = map[desired.FrontendKey]int{}
		for i, f := range p.Frontends {
			p.places[f.FrontendKey] = i
		}
	}
	i, has := p.places[key]
	if p.places == nil {
		i = slices.IndexFunc(p.Frontends, func(f *desired.Frontend) bool { return f.FrontendKey == key })
		has = i >= 0
	}
	if !has {
		return
	}
	last := len(p.Frontends) - 1
	if p.Frontends[i] = p.Frontends[last]; p.places != nil {
		p.places[p.Frontends[i].FrontendKey] = i
		delete(p.places, key)
	}
	if p.Frontends = p.Frontends[:last]; last == 0 {
		p.places = nil
	}
}

// Pools are a dataplane's pools by ID. P is the dataplane's type, which contains a Pool.
type Pools[P any] []*P

// Get returns the pool with an ID, or nil.
func (p Pools[P]) Get(id desired.PoolID) *P {
	if int64(id) >= int64(len(p)) {
		return nil
	}
	return p[id]
}

// Set sets the pool with an ID. nil deletes it.
func (p *Pools[P]) Set(id desired.PoolID, pool *P) {
	for int(id) >= len(*p) {
		*p = append(*p, nil)
	}
	(*p)[id] = pool
}

// SlotChange is a slot with a changed backend.
type SlotChange struct {
	Slot     int
	Old, New desired.Backend
	Had, Has bool // whether Old and New are set
}

// Replace removes and adds backends with as few slot changes as possible: added backends
// fill the slots of removed ones, and backends from the end fill the remaining holes. It
// ignores removed backends that the pool does not have. It is for pools whose backends have one
// slot each.
func (p *Pool) Replace(removed, added []desired.Backend) []SlotChange {
	return p.refill(p.find(removed), added)
}

// refill empties slots, which are in order, and adds backends.
func (p *Pool) refill(empty []int, added []desired.Backend) []SlotChange {
	changes := make([]SlotChange, 0, max(len(empty), len(added)))
	// In order, so that the remaining holes are near the end, where truncation
	// removes some of them.
	for _, i := range empty {
		changes = append(changes, SlotChange{Slot: i, Old: p.Slots[i], Had: true})
	}
	filled := min(len(changes), len(added))
	for k := range filled {
		changes[k].New, changes[k].Has = added[k], true
		p.Slots[changes[k].Slot] = added[k]
	}
	if filled < len(changes) {
		changes = p.close(changes, filled)
	}
	for _, b := range added[filled:] {
		changes = append(changes, SlotChange{Slot: len(p.Slots), New: b, Has: true})
		p.Slots = append(p.Slots, b)
	}
	if p.at != nil {
		for i := range changes {
			delete(p.at, changes[i].Old)
		}
		for i := range changes {
			if c := &changes[i]; c.Has {
				p.at[c.New] = c.Slot
			}
		}
	}
	return changes
}

// manySlots is from how many slots on a pool has an index, once more than a few change.
var manySlots = 1 << 10

// find returns the slots of backends, in order.
func (p *Pool) find(all []desired.Backend) (slots []int) {
	const few = 8 // what a map costs
	switch {
	case len(p.Slots) < manySlots:
		p.at = nil
	case p.at == nil && len(all) > few:
		p.at = make(map[desired.Backend]int, len(p.Slots))
		for i, b := range p.Slots {
			p.at[b] = i
		}
	}
	if p.at == nil && len(all) > few {
		wanted := collect.Set(all)
		for i, b := range p.Slots {
			if wanted[b] {
				slots = append(slots, i)
			}
		}
		return slots
	}
	for _, b := range all {
		i, has := p.at[b]
		if p.at == nil {
			i = slices.Index(p.Slots, b)
			has = i >= 0
		}
		if has {
			slots = append(slots, i)
		}
	}
	slices.Sort(slots)
	return slots
}

// close fills the holes, which are changes[from:] in order, with the backends of the last
// slots, and truncates the pool.
func (p *Pool) close(changes []SlotChange, from int) []SlotChange {
	end := len(changes) // end of the holes; moves are appended after it
	size := len(p.Slots) - (end - from)
	last, lastHole := len(p.Slots)-1, end-1
	for k := from; k < end; k++ {
		hole := changes[k].Slot
		if hole >= size {
			break // truncated, like all holes after it
		}
		for lastHole > k && changes[lastHole].Slot == last {
			last, lastHole = last-1, lastHole-1
		}
		moved := p.Slots[last]
		changes[k].New, changes[k].Has = moved, true
		changes = append(changes, SlotChange{Slot: last, Old: moved, Had: true})
		p.Slots[hole] = moved
		last--
	}
	p.Slots = p.Slots[:size]
	return changes
}
