// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/desired"
)

func testBackend(i int) desired.Backend {
	return desired.NewBackend(netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 80))
}

// TestReplace makes random changes to a pool and applies the slot changes to a map, with the
// kernel's rules: only an existing slot can be deleted, and only a free one added. At the
// end, the map has exactly the pool's slots, without gaps.
func TestReplace(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	r := rand.New(rand.NewPCG(seed, 0))
	defer func(n int) { manySlots = n }(manySlots)
	for round := range 200 {
		manySlots = 40 + round%2<<10
		p := &Pool{}
		kernel := map[int]desired.Backend{}
		have := map[desired.Backend]bool{}
		for step := range 50 {
			var removed, added []desired.Backend
			for b := range have {
				if r.IntN(3) == 0 {
					removed = append(removed, b)
				}
			}
			for range r.IntN(1 + round) {
				if b := testBackend(r.IntN(400)); !have[b] && !slices.Contains(added, b) {
					added = append(added, b)
				}
			}
			if b := testBackend(r.IntN(400)); !have[b] {
				removed = append(removed, b) // which it does not have
			}
			for _, b := range removed {
				delete(have, b)
			}
			for _, b := range added {
				have[b] = true
			}
			if err := replay(kernel, p.Replace(removed, added)); err != nil {
				t.Fatalf("seed %d, round %d, step %d: %v", seed, round, step, err)
			}
			if len(kernel) != len(have) || len(p.Slots) != len(have) {
				t.Fatalf("seed %d: %d slots in the kernel, %d in the pool, for %d backends", seed, len(kernel), len(p.Slots), len(have))
			}
			for i, b := range p.Slots {
				if kernel[i] != b || !have[b] {
					t.Fatalf("seed %d: slot %d has %v in the kernel, %v in the pool", seed, i, kernel[i], b)
				}
			}
		}
	}
}

// replay applies the changes like the writer: all deletions, then all additions.
func replay(kernel map[int]desired.Backend, changes []SlotChange) error {
	for _, c := range changes {
		if c.Had {
			if there, ok := kernel[c.Slot]; !ok || there != c.Old {
				return fmt.Errorf("slot %d: the deletion expects %v, but the kernel has %v", c.Slot, c.Old, there)
			}
			delete(kernel, c.Slot)
		}
	}
	for _, c := range changes {
		if c.Has {
			if there, ok := kernel[c.Slot]; ok {
				return fmt.Errorf("slot %d: the addition expects it to be free, but the kernel has %v", c.Slot, there)
			}
			kernel[c.Slot] = c.New
		}
	}
	return nil
}

// TestReplaceTouchesLittle checks the number of slots written for typical changes of a large
// pool.
func TestReplaceTouchesLittle(t *testing.T) {
	for _, tc := range []struct {
		name           string
		removed, added []desired.Backend
		slots          int
	}{
		{"one replaced", []desired.Backend{testBackend(7)}, []desired.Backend{testBackend(5000)}, 1},
		{"one added", nil, []desired.Backend{testBackend(5000)}, 1},
		{"one removed from the middle", []desired.Backend{testBackend(7)}, nil, 2},
		{"the last one removed", []desired.Backend{testBackend(999)}, nil, 1},
		{"one removed that is not there", []desired.Backend{testBackend(5000)}, nil, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := &Pool{}
			var all []desired.Backend
			for i := range 1000 {
				all = append(all, testBackend(i))
			}
			p.Replace(nil, all)
			if got := len(p.Replace(tc.removed, tc.added)); got != tc.slots {
				t.Errorf("%d slots written, want %d", got, tc.slots)
			}
		})
	}
}
