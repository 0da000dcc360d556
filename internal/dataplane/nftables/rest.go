// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"maps"
	"slices"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// Slots that an algorithm or weights need are written in parts, by further calls of Apply, so that no other Service waits
// for a whole table. Until it is complete, the rules draw from the slots that they drew from before, each of which has a
// backend of the pool. Those of backends that are removed are written at once.

// rest is what Apply has left of the slots of a pool, which may be deleted.
type rest struct {
	service desired.ServicePort
	family  desired.Family
	sets    *scopeSets
	has     []desired.Backend // the kernel's, by slot; zero for none
	todo    []uint32          // slots in which the pool has others
	before  int               // how many of todo have to be written before the rules draw by the pool's size and algorithm
	draws   int               // from how many slots they choose one until then
	by      desired.Algorithm
}

// draws returns from how many slots the rules choose one, and how.
func (p *pool) draws() (n int, by desired.Algorithm) {
	if x := p.rest; x != nil && x.before > 0 {
		return x.draws, x.by
	}
	return len(p.Slots), p.Algorithm
}

// drawnBelow returns the number below which the rules draw if they choose one of n slots. (A random choice of a number
// without a slot is repeated.)
func drawnBelow(n int, by desired.Algorithm) int {
	if by.Hashes() {
		return n
	}
	return pickSize(n)
}

var none desired.Backend

// slot returns the backend that a slot shall have; zero for none.
func (p *pool) slot(i int) (b desired.Backend) {
	if i < len(p.Slots) {
		b = p.Slots[i]
	}
	return b
}

// cost is the number of elements that it takes to change slots.
func cost(slots ...dataplane.SlotChange) (n int) {
	for i := range slots {
		if n++; slots[i].Had && slots[i].Has {
			n++
		}
	}
	return n
}

// step returns the changes of a pool's slots that there is room for, and leaves the others. all are those of c. The
// rules chose one of so many slots before.
func (b *Dataplane) step(p *pool, c *desired.PoolChange, draws int, by desired.Algorithm, all []dataplane.SlotChange) (now []dataplane.SlotChange) {
	x := b.rests[c.ID]
	if x == nil {
		if need := cost(all...); need <= b.most-b.spent[c.Service.Namespace] {
			b.spent[c.Service.Namespace] += need
			return all
		}
		x = &rest{has: slices.Clone(p.Slots)}
		for _, s := range all {
			x.grow(s.Slot + 1)
			x.has[s.Slot] = s.Old
		}
	}
	x.service, x.family, x.sets, x.draws, x.by = c.Service, c.Family, p.sets, draws, by
	var first []desired.Backend // a pool without backends chooses one at random until its table is complete
	fresh := c.New || draws == 0
	if fresh {
		has := make(map[desired.Backend]bool, len(c.Added))
		for _, s := range p.Slots {
			if !has[s] {
				has[s], first = true, append(first, s)
			}
		}
		x.draws, x.by = len(first), desired.Random
	}
	x.grow(len(p.Slots))
	removed := make(map[desired.Backend]bool, len(c.Removed))
	for _, s := range c.Removed {
		removed[s] = true
	}
	reach, again := drawnBelow(x.draws, x.by), false // a slot that is written now will be once more
	for i := range min(reach, len(x.has)) {
		want := x.has[i]
		switch {
		case i < len(first):
			want = first[i]
		case (fresh && want != none || len(removed) > 0 && removed[want]) && len(p.Slots) > 0: // also what was there before
			want = p.Slots[i%len(p.Slots)]
		}
		if want != x.has[i] {
			now, again = append(now, x.write(i, want)), again || want != p.slot(i)
		}
	}
	b.spent[c.Service.Namespace] += cost(now...)
	var todo [3][]uint32
	next := drawnBelow(len(p.Slots), p.Algorithm)
	for i := range x.has {
		switch want := p.slot(i); {
		case want == x.has[i]:
		case i >= reach && i < next: // not drawn from yet
			todo[0] = append(todo[0], uint32(i))
		case i < len(p.Slots):
			todo[1] = append(todo[1], uint32(i))
		default:
			todo[2] = append(todo[2], uint32(i))
		}
	}
	x.todo, x.before = slices.Concat(todo[:]...), len(todo[0])+len(todo[1])
	most := len(x.todo)
	if again {
		most = len(todo[0])
	}
	return append(now, b.take(p, c.ID, x, most)...)
}

func (x *rest) grow(n int) { x.has = append(x.has, make([]desired.Backend, max(0, n-len(x.has)))...) }

// write records the backend that a slot gets; zero for none.
func (x *rest) write(i int, to desired.Backend) dataplane.SlotChange {
	s := dataplane.SlotChange{Slot: i, Old: x.has[i], New: to, Had: x.has[i] != none, Has: to != none}
	x.has[i] = to
	return s
}

// take returns the changes of the first slots that were left that there is room for.
func (b *Dataplane) take(p *pool, id desired.PoolID, x *rest, most int) (now []dataplane.SlotChange) {
	n, spent := 0, b.spent[x.service.Namespace]
	for ; n < most && spent < b.most; n++ {
		i := int(x.todo[n])
		now = append(now, x.write(i, p.slot(i)))
		spent += cost(now[n])
	}
	b.spent[x.service.Namespace] = spent
	x.todo, x.before = x.todo[n:], max(0, x.before-n)
	if p.rest = x; len(x.todo) == 0 {
		p.rest = nil
		delete(b.rests, id)
	} else {
		b.rests[id] = x
	}
	return now
}

// continueRests takes from the slots that were left of pools that are not in this change.
func (b *Dataplane) continueRests() {
	for _, id := range slices.Sorted(maps.Keys(b.rests)) {
		x := b.rests[id]
		if b.spent[x.service.Namespace] >= b.most || slices.ContainsFunc(b.writer.poolUpdates, func(r poolUpdate) bool { return r.id == id }) {
			continue
		}
		r := poolUpdate{id: id, schema: b.schemas[x.family], scopeSets: x.sets, before: noSelector, after: noSelector}
		if p := b.pools.Get(id); p == nil {
			r.slots = b.take(&pool{}, id, x, len(x.todo))
		} else {
			r.shared, r.before = p.shared, selectorOf(p)
			r.slots = b.take(p, id, x, len(x.todo))
			r.after = b.prepareSelector(p)
		}
		b.writer.poolUpdates = append(b.writer.poolUpdates, r)
	}
}
