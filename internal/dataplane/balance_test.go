// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// TestWeightsSlots compares the shares of slots with random weights.
func TestWeightsSlots(t *testing.T) {
	for range 300 {
		w, sum := Weights{}, 0.0
		scale := []uint64{1, 100, 1e9}[rand.IntN(3)]
		for i := range 1 + rand.IntN(200) {
			n := 1 + rand.Uint64N(100)*scale
			w[testBackend(i)] = n
			sum += float64(n)
		}
		slots, all := w.Slots(), 0
		for _, n := range slots {
			all += n
		}
		for b, n := range slots {
			// One slot is the least.
			if off := math.Abs(float64(n)/float64(all) - float64(w[b])/sum); off > 0.01 || off*float64(len(w)) > 0.025 || n < 1 {
				t.Fatalf("weight %d of %.0f: %d slots of %d, for %d backends", w[b], sum, n, all, len(w))
			}
		}
	}
	few := Weights{testBackend(1): 100, testBackend(2): 10, testBackend(3): 90}.Slots()
	if few[testBackend(1)] != 10 || few[testBackend(2)] != 1 || few[testBackend(3)] != 9 {
		t.Errorf("weights 100, 10 and 90: %v", few)
	}
}

// TestUpdate makes random changes to a pool's backends, weights and algorithm, and applies the
// changes of slots to a map. A pool that is made at once has the same slots, except for their
// order where that is of no importance. After a partial change, its slots have backends of the pool.
func TestUpdate(t *testing.T) {
	p := &Pool{}
	kernel, weights := map[int]desired.Backend{}, map[desired.Backend]uint64{}
	for step := range 2000 {
		c := &desired.PoolChange{Balance: p.Balance, Partial: rand.IntN(3) > 0}
		if rand.IntN(5) == 0 {
			c.Algorithm = desired.Algorithm(rand.IntN(4))
		}
		if c.TableSize = 0; c.Algorithm.Hashes() {
			c.TableSize = 251
		}
		full := &desired.PoolChange{Balance: c.Balance}
		set := func(b desired.Backend, n uint64) {
			weights[b] = n
			c.Weights = append(c.Weights, desired.Weight{Backend: b, Weight: n})
		}
		for i := range 12 {
			b := testBackend(i)
			_, has := weights[b]
			switch change := rand.IntN(8); {
			case change == 0 && has:
				delete(weights, b)
				c.Removed = append(c.Removed, b)
			case change == 1 && !has:
				c.Added, weights[b] = append(c.Added, b), desired.DefaultWeight
			case change == 2 && !has:
				c.Added = append(c.Added, b)
				set(b, 1+rand.Uint64N(9))
			case change == 3 && has && step%50 > 20:
				set(b, 1+rand.Uint64N(9))
			case has && step%50 == 20:
				set(b, desired.DefaultWeight)
			}
		}
		for b, n := range weights {
			full.Added, full.Weights = append(full.Added, b), append(full.Weights, desired.Weight{Backend: b, Weight: n})
		}
		if err := replay(kernel, p.Update(c)); err != nil {
			t.Fatal(err)
		}
		fresh := &Pool{}
		fresh.Update(full)
		if len(kernel) != len(p.Slots) {
			t.Fatalf("%d slots, %d in the kernel", len(p.Slots), len(kernel))
		}
		for i, b := range p.Slots {
			if kernel[i] != b {
				t.Fatalf("slot %d has %s, in the kernel %s", i, b, kernel[i])
			}
		}
		for _, b := range p.Slots {
			if weights[b] == 0 {
				t.Fatalf("a slot has %s, which was removed", b)
			}
		}
		if c.Partial {
			if len(weights) > 0 && len(p.Slots) == 0 {
				t.Fatal("no slots")
			}
			continue
		}
		if got, want := ChoiceOf(p.Balance, p.Slots).String(), ChoiceOf(fresh.Balance, fresh.Slots).String(); got != want {
			t.Fatalf("slots by changes: %s, at once: %s", got, want)
		}
	}
}

// TestInTurn: at any time, a backend has had its share of turns, and at most half a turn more or
// less, while the others together may be half a turn each away from theirs.
func TestInTurn(t *testing.T) {
	slots, sum := map[desired.Backend]int{}, 0
	for i := range 9 {
		slots[testBackend(i)] = 1 + rand.IntN(9)
		sum += slots[testBackend(i)]
	}
	turns, had := inTurn(slots), map[desired.Backend]int{}
	for i, b := range turns {
		had[b]++
		for b, n := range slots {
			if want, most := float64(n*(i+1))/float64(sum), 0.5+float64(n*len(slots))/float64(2*sum); math.Abs(float64(had[b])-want) > most+1e-9 {
				t.Errorf("after %d turns, a backend with %d of %d has had %d", i+1, n, sum, had[b])
			}
		}
	}
	if len(turns) != sum {
		t.Errorf("%d turns for %d slots", len(turns), sum)
	}
}

// TestMaglevTable makes 1,000 random changes and counts the slots whose backend changes although
// it stays.
func TestMaglevTable(t *testing.T) {
	worst, uneven := 0.0, 0.0
	for _, sizes := range []struct{ least, most, table int }{{2, 10, 4093}, {11, 100, 16381}} {
		w, next := Weights{}, sizes.least
		for i := range next {
			w[testBackend(i)] = desired.DefaultWeight
		}
		table := w.table(sizes.table)
		for range 500 {
			moves := 1 / float64(len(w))
			if len(w) < sizes.most && (len(w) == sizes.least || rand.IntN(2) == 0) {
				w[testBackend(next)] = desired.DefaultWeight
				next++
				moves = 1 / float64(len(w))
			} else {
				all := slices.Collect(maps.Keys(w))
				delete(w, all[rand.IntN(len(all))])
			}
			now := w.table(sizes.table)
			differ, slots := 0, map[desired.Backend]int{}
			for i, b := range now {
				if slots[b]++; b != table[i] {
					differ++
				}
			}
			table = now
			worst = max(worst, float64(differ)/float64(sizes.table)-moves)
			for b, n := range slots {
				if _, has := w[b]; !has {
					t.Fatalf("the table has %s, which is no backend", b)
				}
				uneven = max(uneven, math.Abs(float64(n)*float64(len(w))/float64(sizes.table)-1))
			}
		}
	}
	if worst > 0.02 || uneven > 0.01 {
		t.Errorf("%.2f %% of the clients move besides those that must; shares differ by %.2f %%", 100*worst, 100*uneven)
	}
	t.Logf("%.2f %% of the clients move besides those that must; shares differ by %.2f %%", 100*worst, 100*uneven)
}

// TestMaglevWeights compares shares of a table with weights.
func TestMaglevWeights(t *testing.T) {
	w, sum := Weights{}, 0.0
	for i := range 40 {
		w[testBackend(i)] = 1 + rand.Uint64N(100)
		sum += float64(w[testBackend(i)])
	}
	slots := map[desired.Backend]int{}
	for _, b := range w.table(4093) {
		slots[b]++
	}
	for b, n := range w {
		if off := float64(slots[b])/4093 - float64(n)/sum; math.Abs(off) > 0.001 {
			t.Errorf("weight %d of %.0f: %d slots of 4093", n, sum, slots[b])
		}
	}
}

// TestMaglevRounds compares tables with those that follow from the definition: in each round, each backend whose
// weights of all rounds have come to the largest weight again takes its next free slot.
func TestMaglevRounds(t *testing.T) {
	for n := range 60 {
		w, size := Weights{}, []int{251, 1021}[n%2]
		for i := range 1 + n*n/10 {
			w[testBackend(i)] = rand.Uint64N(101) * rand.Uint64N(uint64(n/20+1)*100000)
		}
		first := w.table(size)
		heaviest := slices.Max(slices.Collect(maps.Values(w)))
		backends, credits := slices.SortedFunc(maps.Keys(w), desired.Backend.Compare), map[desired.Backend]uint64{}
		next := map[desired.Backend]*candidate{}
		for _, b := range backends {
			if w[b] > 0 {
				credits[b] = heaviest - w[b]
			}
			ip := b.As16()
			sum := sha256.Sum256(binary.BigEndian.AppendUint16(ip[:], b.Port()))
			next[b] = &candidate{sequence: binary.BigEndian.Uint64(sum[:])}
		}
		want := make([]desired.Backend, size)
		for filled := 0; filled < size; {
			for _, b := range backends {
				if credits[b] += w[b]; credits[b] < heaviest || filled == size {
					continue
				}
				credits[b] -= heaviest
				slot := next[b].next(size)
				for want[slot] != (desired.Backend{}) {
					slot = next[b].next(size)
				}
				want[slot] = b
				filled++
			}
		}
		if !slices.Equal(first, want) {
			t.Errorf("%d backends: another table", len(w))
		}
	}
}

// Each backend with a weight has a slot.
func TestMaglevSlots(t *testing.T) {
	w := Weights{}
	for i := range 300 {
		w[testBackend(i)] = desired.DefaultWeight
	}
	w[testBackend(0)], w[testBackend(1)] = 1, 0
	slots := map[desired.Backend]int{}
	for _, b := range w.table(1021) {
		slots[b]++
	}
	if missing := len(w) - 1 - len(slots); missing > 0 || slots[testBackend(1)] > 0 {
		t.Errorf("no slot for %d of %d backends, %d for one without a weight", missing, len(w), slots[testBackend(1)])
	}
}

func BenchmarkMaglevTable(b *testing.B) {
	w := Weights{}
	for i := range 100 {
		w[testBackend(i)] = desired.DefaultWeight
	}
	for b.Loop() {
		w.table(16381)
	}
}

// TestWeightsZero: weights that are all 0 are equal, whatever the algorithm.
func TestWeightsZero(t *testing.T) {
	for _, a := range []desired.Algorithm{desired.Random, desired.RoundRobin, desired.LeastConnections, desired.Maglev} {
		c := &desired.PoolChange{Balance: desired.Balance{Algorithm: a, TableSize: 251}}
		for i := range 3 {
			c.Added = append(c.Added, testBackend(i))
			c.Weights = append(c.Weights, desired.Weight{Backend: testBackend(i)})
		}
		p := &Pool{}
		p.Update(c)
		slots := map[desired.Backend]int{}
		for _, b := range p.Slots {
			slots[b]++
		}
		for i := range 3 {
			if n := slots[testBackend(i)]; n < len(p.Slots)/3 || n == 0 {
				t.Errorf("%s: backend %d has %d of %d slots", a, i, n, len(p.Slots))
			}
		}
	}
}

// TestFillSpreads: while a pool with a table shrinks or changes in parts, no backend has far more slots than another in the end.
func TestFillSpreads(t *testing.T) {
	const size = 16381
	for _, kept := range []int{500, 100, 0} {
		p, c := &Pool{}, desired.PoolChange{Balance: desired.Balance{Algorithm: desired.Maglev, TableSize: size}, Partial: true}
		for i := range 1000 {
			c.Added = append(c.Added, testBackend(i))
		}
		p.Update(&c)
		has := 1000
		for i := kept; i < 1000; i += 10 {
			c.Added, c.Removed = nil, nil
			for k := range 10 {
				c.Removed = append(c.Removed, testBackend(i+k))
				if kept == 0 { // all are replaced
					c.Added = append(c.Added, testBackend(1000+i+k))
				}
			}
			p.Update(&c)
			counts, most := map[desired.Backend]int{}, 0
			for _, b := range p.Slots {
				counts[b]++
				most = max(most, counts[b])
			}
			if has += len(c.Added) - len(c.Removed); most > 20+4*size/has {
				t.Fatalf("one of %d backends has %d slots", has, most)
			}
		}
	}
}
