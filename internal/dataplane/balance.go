// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"hash/maphash"
	"maps"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"sort"
	"strings"

	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// Weights are the weights of all backends of a pool. nil says that all are the default.
type Weights map[desired.Backend]uint64

// After returns the weights after a change of a pool that had the backends before. It may modify
// the receiver.
func (w Weights) After(before []desired.Backend, c *desired.PoolChange) Weights {
	if w = w.after(before, c); w.areDefault() {
		return nil
	}
	return w
}

// after is After, but also returns default weights if there were others, or for a table.
func (w Weights) after(before []desired.Backend, c *desired.PoolChange) Weights {
	if w == nil {
		if len(c.Weights) == 0 && !c.Algorithm.Hashes() {
			return nil
		}
		w = make(Weights, len(before)+len(c.Added))
		for _, b := range before {
			w[b] = desired.DefaultWeight
		}
	}
	for _, b := range c.Removed {
		delete(w, b)
	}
	for _, b := range c.Added {
		w[b] = desired.DefaultWeight
	}
	for _, x := range c.Weights {
		w[x.Backend] = x.Weight
	}
	return w
}

func (w Weights) areDefault() bool {
	for _, n := range w {
		if n != desired.DefaultWeight {
			return false
		}
	}
	return true
}

// Slots returns how many slots each backend has, in proportion to the weights: at least one unless
// its weight is 0. Weights that are all 0 are equal. It is nil for nil.
func (w Weights) Slots() map[desired.Backend]int {
	if w == nil {
		return nil
	}
	divisor, sum := uint64(0), uint64(0)
	for _, n := range w {
		for n > 0 {
			divisor, n = n, divisor%n
		}
	}
	slots := make(map[desired.Backend]int, len(w))
	if divisor == 0 {
		for b := range w {
			slots[b] = 1
		}
		return slots
	}
	for _, n := range w {
		sum += n / divisor
	}
	most := uint64(desired.MostSlots(len(w)))
	if sum <= most {
		for b, n := range w {
			slots[b] = int(n / divisor)
		}
		return slots
	}
	type rest struct {
		desired.Backend
		n uint64
	}
	var rests []rest
	left := int(most)
	for b, n := range w {
		n = n / divisor * most
		if n < sum {
			slots[b] = int(min(n, 1))
		} else {
			slots[b] = int(n / sum)
			rests = append(rests, rest{b, n % sum})
		}
		left -= slots[b]
	}
	slices.SortFunc(rests, func(a, b rest) int { return cmp.Or(cmp.Compare(b.n, a.n), a.Compare(b.Backend)) })
	for i := range min(max(left, 0), len(rests)) {
		slots[rests[i].Backend]++
	}
	return slots
}

// Update applies a change to the slots, and returns those that differ. Slots are given anew by
// an algorithm that needs an order, and by others such that few differ.
func (p *Pool) Update(c *desired.PoolChange) []SlotChange {
	partial := c.Partial && c.Algorithm == p.Algorithm
	p.Balance = c.Balance
	if p.weights = p.weights.after(p.Slots, c); p.weights == nil {
		return p.Replace(c.Removed, c.Added)
	}
	p.at = nil
	if partial && p.Algorithm.Hashes() && p.weights.areDefault() {
		if changes, done := p.fill(c); done {
			return changes
		}
	}
	p.spare, p.chosen = nil, len(p.weights)
	if p.Algorithm.Hashes() {
		return p.set(p.weights.table(int(p.TableSize)))
	}
	slots := p.weights.Slots()
	if p.weights.areDefault() {
		p.weights = nil // each backend has one slot
	}
	if p.Algorithm == desired.RoundRobin {
		return p.set(inTurn(slots))
	}
	surplus, lacking := make([]int, 0, len(p.Slots)), 0
	for i := 0; i < len(p.Slots); { // a backend often has several slots in a row
		b := p.Slots[i]
		n := slots[b]
		for ; i < len(p.Slots) && p.Slots[i] == b; i++ {
			if n--; n < 0 {
				surplus = append(surplus, i)
			}
		}
		slots[b] = max(n, 0)
	}
	for _, n := range slots {
		lacking += n
	}
	missing := make([]desired.Backend, 0, lacking)
	for b, n := range slots {
		for range n {
			missing = append(missing, b)
		}
	}
	return p.refill(surplus, missing)
}

// fill gives the slots of backends that are gone to those that were added since slots were chosen, if these are many, or
// else to any others. It reports whether it could: no backend must get far more slots than it has in the end.
func (p *Pool) fill(c *desired.PoolChange) (changes []SlotChange, done bool) {
	gone := func(b desired.Backend) bool { return p.weights[b] == 0 }
	p.spare = slices.DeleteFunc(append(p.spare, c.Added...), gone)
	others := p.spare
	if len(p.spare) < max(p.chosen/8, 1) {
		others = slices.DeleteFunc(slices.Clone(p.Slots), gone)
	}
	if len(others) == 0 || len(p.weights) < p.chosen/2 || len(p.weights) > 2*p.chosen {
		return nil, false
	}
	for i, b := range p.Slots {
		if gone(b) {
			p.Slots[i] = others[rand.IntN(len(others))]
			changes = append(changes, SlotChange{Slot: i, Old: b, New: p.Slots[i], Had: true, Has: true})
		}
	}
	return changes, true
}

// set replaces the slots.
func (p *Pool) set(slots []desired.Backend) (changes []SlotChange) {
	for i := range max(len(p.Slots), len(slots)) {
		c := SlotChange{Slot: i, Had: i < len(p.Slots), Has: i < len(slots)}
		if c.Had {
			c.Old = p.Slots[i]
		}
		if c.Has {
			c.New = slots[i]
		}
		if c.Had != c.Has || c.Old != c.New {
			changes = append(changes, c)
		}
	}
	p.Slots = slots
	return changes
}

// orderSeed makes an order of backends that differs between nodes, so that they do not send to
// the same backend at the same time.
var orderSeed = maphash.MakeSeed()

// inTurn returns slots in which each backend is spread evenly.
func inTurn(slots map[desired.Backend]int) []desired.Backend {
	type turn struct {
		desired.Backend
		at    float64 // from 0 to 1
		order uint64
	}
	var turns []turn
	for b, n := range slots {
		order := maphash.Comparable(orderSeed, b)
		for i := range n {
			turns = append(turns, turn{b, float64(2*i+1) / float64(2*n), order})
		}
	}
	slices.SortFunc(turns, func(a, b turn) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.order, b.order)) })
	all := make([]desired.Backend, len(turns))
	for i := range turns {
		all[i] = turns[i].Backend
	}
	return all
}

// candidate is a backend whose slots are being chosen.
type candidate struct {
	desired.Backend
	sequence, weight uint64
}

// next returns the next slot in the backend's order: pseudo-random numbers (splitmix64).
func (c *candidate) next(size int) int {
	c.sequence += 0x9e3779b97f4a7c15
	z := c.sequence
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	slot, _ := bits.Mul64(z^z>>31, uint64(size))
	return int(slot)
}

// table returns the table of Maglev (Eisenbud et al., NSDI 2016, section 3.4): backends take
// turns at the next free slot in an order of their own, one with half the weight of the largest
// in every second round. It depends on nothing but addresses, ports and weights.
//
// The paper's orders are arithmetic sequences. Two of them can be so similar that a change moves
// 5 % of the slots needlessly (seen with 20 backends and 4,093 slots). Random sequences have no
// such pairs.
func (w Weights) table(size int) []desired.Backend {
	if len(w) == 0 {
		return nil
	}
	heaviest := slices.Max(slices.Collect(maps.Values(w)))
	var all []candidate
	for _, b := range slices.SortedFunc(maps.Keys(w), desired.Backend.Compare) {
		if w[b] == 0 && heaviest > 0 {
			continue
		}
		ip := b.As16()
		sum := sha256.Sum256(binary.BigEndian.AppendUint16(ip[:], b.Port()))
		all = append(all, candidate{b, binary.BigEndian.Uint64(sum[:]), max(w[b], 1)})
	}
	heaviest = max(heaviest, 1)
	order := func(n int) int { return n % len(all) }
	if slices.ContainsFunc(all, func(c candidate) bool { return c.weight != heaviest }) {
		order = turns(all, heaviest, size)
	}
	table := make([]desired.Backend, size)
	taken := make([]bool, size)
	for n := range size {
		c := &all[order(n)]
		slot := c.next(size)
		for taken[slot] {
			slot = c.next(size)
		}
		taken[slot], table[slot] = true, c.Backend
	}
	return table
}

// turns returns whose turn each one is. All have one in round 0. Only the turns are visited, as there can be many rounds
// with few.
func turns(all []candidate, heaviest uint64, size int) func(n int) int {
	until := func(c *candidate, round int) int { return 1 + int(uint64(round)*c.weight/heaviest) }
	rounds := make([][]int, 1+sort.Search(size-1, func(last int) bool {
		sum := 0
		for i := range all {
			sum += until(&all[i], last)
		}
		return sum >= size
	}))
	for i := range all {
		c := &all[i]
		for n := range until(c, len(rounds)-1) {
			round := (uint64(n)*heaviest + c.weight - 1) / c.weight
			rounds[round] = append(rounds[round], i)
		}
	}
	order := slices.Concat(rounds...)
	return func(n int) int { return order[n] }
}

// ChoiceOf describes the slots of a pool.
func ChoiceOf(balance desired.Balance, slots []desired.Backend) (c Choice) {
	counts := make(map[desired.Backend]int, len(slots))
	for _, b := range slots {
		counts[b]++
	}
	c = ChoiceByShares(counts)
	if balance.Algorithm.Hashes() && len(slots) > 1 {
		order := fnv.New64a()
		for _, b := range slots {
			ip := b.As16()
			order.Write(binary.BigEndian.AppendUint16(ip[:], b.Port()))
		}
		c.Spread = fmt.Sprintf("%s with %d slots, %x", balance.Algorithm, len(slots), order.Sum64())
	}
	return c
}

// ChoiceByShares describes backends by their shares of connections, of any sum.
func ChoiceByShares[T int | float64](of map[desired.Backend]T) Choice {
	c := Choice{Backends: slices.SortedFunc(maps.Keys(of), desired.Backend.Compare)}
	sum, equal := 0.0, true
	for _, n := range of {
		sum += float64(n)
	}
	var shares []string // in thousandths
	for _, b := range c.Backends {
		const rounding = 1e-4 // of a thousandth, with the kernel's precision for probabilities
		share := 1000 * float64(of[b]) / sum
		equal = equal && math.Abs(share*float64(len(of))/1000-1) < 1e-3
		shares = append(shares, fmt.Sprint(int(share+0.5+rounding)))
	}
	if !equal {
		c.Spread = "shares " + strings.Join(shares, " ")
	}
	return c
}
