// SPDX-License-Identifier: Apache-2.0

package nftables

import "github.com/slipstream-proxy/slipstream/desired"

// pool is what the kernel has of a pool: which backend is in which slot. Slots
// are numbered from 0 without gaps, so that a random number below the size
// always hits one.
type pool struct {
	family  desired.Family
	service desired.ServicePort
	// frontend is one of those that lead here, or none; for Check.
	frontend desired.FrontendKey
	ifEmpty  desired.Verdict
	slots    []desired.Backend
	index    map[desired.Backend]int32 // of large pools
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
	before := len(p.slots)
	var changes []slotChange
	var holes []int
	for _, b := range removed {
		if i := p.find(b); i >= 0 {
			holes = append(holes, i)
			delete(p.index, b)
			changes = append(changes, slotChange{slot: i, old: b, had: true})
		}
	}
	for k, i := range holes {
		if k == len(added) {
			break
		}
		p.put(i, added[k])
		changes[k].new, changes[k].has = added[k], true
	}
	for _, b := range added[min(len(holes), len(added)):] {
		p.slots = append(p.slots, b)
		p.put(len(p.slots)-1, b)
		changes = append(changes, slotChange{slot: len(p.slots) - 1, new: b, has: true})
	}
	if filled := min(len(holes), len(added)); filled < len(holes) {
		changes = p.close(changes[:len(holes)], filled)
	}
	p.keepIndex(before)
	return changes
}

// close fills the holes from a position on with the last slots. changes[k] is
// about hole k.
func (p *pool) close(changes []slotChange, from int) []slotChange {
	hole := make(map[int]int, len(changes)-from) // slot -> its change
	for k := from; k < len(changes); k++ {
		hole[changes[k].slot] = k
	}
	size := len(p.slots) - len(hole)
	last := len(p.slots) - 1
	for k := from; k < len(changes); k++ {
		i := changes[k].slot
		if i >= size {
			continue // cut off with the end
		}
		for _, isHole := hole[last]; isHole; _, isHole = hole[last] {
			last--
		}
		moved := p.slots[last]
		changes[k].new, changes[k].has = moved, true
		changes = append(changes, slotChange{slot: last, old: moved, had: true})
		p.put(i, moved)
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
func (p *pool) keepIndex(before int) {
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
