// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"slices"

	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// pool is what the kernel has of a pool: which backend is in which slot. Slots
// are numbered from 0 without gaps, so that a random number below the size
// always hits one.
type pool struct {
	family  desired.Family
	scope   desired.Scope
	sticky  bool
	service desired.ServicePort
	// frontends are those that lead here; for Check.
	frontends []*desired.Frontend
	ifEmpty   desired.Verdict
	slots     []desired.Backend
	index     map[desired.Backend]int32 // of large pools
}

// indexFrom is the size from which a pool keeps an index of its slots.
const indexFrom = 64

// slotChange is a slot whose content differs.
type slotChange struct {
	slot     int
	old, new desired.Backend
	had, has bool
}

// replace takes backends out and puts others in, touching as few slots as
// possible: new ones take the places of old ones, and what holes remain are
// filled from the end. Backends that are not there to be removed are ignored.
func (p *pool) replace(removed, added []desired.Backend) []slotChange {
	var changes []slotChange
	for _, b := range removed {
		if i := p.find(b); i >= 0 {
			delete(p.index, b)
			changes = append(changes, slotChange{slot: i, old: b, had: true})
		}
	}
	// In order, so that holes near the end are left, where cutting the end
	// off removes some.
	slices.SortFunc(changes, func(a, b slotChange) int { return a.slot - b.slot })
	filled := min(len(changes), len(added))
	for k := range filled {
		changes[k].new, changes[k].has = added[k], true
		p.put(changes[k].slot, added[k])
	}
	if filled < len(changes) {
		changes = p.close(changes, filled)
	}
	for _, b := range added[filled:] {
		p.slots = append(p.slots, b)
		p.put(len(p.slots)-1, b)
		changes = append(changes, slotChange{slot: len(p.slots) - 1, new: b, has: true})
	}
	p.keepIndex()
	return changes
}

// close fills the holes, which changes[from:] are about in order, with the last
// slots.
func (p *pool) close(changes []slotChange, from int) []slotChange {
	end := len(changes) // of the holes; moves are appended after them
	size := len(p.slots) - (end - from)
	last, lastHole := len(p.slots)-1, end-1
	for k := from; k < end; k++ {
		hole := changes[k].slot
		if hole >= size {
			break // cut off with the end, as all after it
		}
		for lastHole > k && changes[lastHole].slot == last {
			last, lastHole = last-1, lastHole-1
		}
		moved := p.slots[last]
		changes[k].new, changes[k].has = moved, true
		changes = append(changes, slotChange{slot: last, old: moved, had: true})
		p.put(hole, moved)
		last--
	}
	p.slots = p.slots[:size]
	return changes
}

func (p *pool) put(i int, b desired.Backend) {
	p.slots[i] = b
	if p.index != nil {
		p.index[b] = int32(i)
	}
}

func (p *pool) find(b desired.Backend) int {
	if p.index != nil {
		if i, ok := p.index[b]; ok {
			return int(i)
		}
		return -1
	}
	for i := range p.slots {
		if p.slots[i] == b {
			return i
		}
	}
	return -1
}

// keepIndex makes or drops the index as the size asks for it.
func (p *pool) keepIndex() {
	switch {
	case p.index == nil && len(p.slots) >= indexFrom:
		p.index = make(map[desired.Backend]int32, 2*len(p.slots))
		for i, b := range p.slots {
			p.index[b] = int32(i)
		}
	case p.index != nil && len(p.slots) < indexFrom/2:
		p.index = nil
	}
}
