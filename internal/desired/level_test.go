// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"math/rand/v2"
	"slices"
	"testing"
)

func TestLevel(t *testing.T) {
	for _, test := range []struct {
		name     string
		all      []candidate
		expected float64
		want     []uint8
	}{
		{"nothing known", []candidate{{0, 1}, {0, 1}, {0, 1}}, 0, []uint8{10, 10, 10}},
		{"by weight", []candidate{{0, 1}, {0, 2}}, 30, []uint8{5, 10}},
		{"by weight, level", []candidate{{10, 1}, {20, 2}}, 30, []uint8{5, 10}},
		{"one has more than all will have", []candidate{{0, 1}, {0, 1}, {100, 1}}, 10, []uint8{10, 10, 0}},
		{"a new one lacks 10, the others 5", []candidate{{5, 1}, {5, 1}, {0, 1}}, 20, []uint8{5, 5, 10}},
		{"a new one beside busy ones", []candidate{{100, 1}, {100, 1}, {0, 1}}, 30, []uint8{3, 3, 10}},
		{"a new one beside a busy one", []candidate{{100, 1}, {0, 1}}, 30, []uint8{0, 10}},
		{"drained", []candidate{{0, 0}, {7, 1}}, 10, []uint8{0, 10}},
		{"all drained", []candidate{{0, 0}, {1, 0}}, 10, []uint8{0, 0}},
		{"none", nil, 10, nil},
	} {
		if got := level(test.all, test.expected); !slices.Equal(got, test.want) {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
}

// TestLevels draws backends by the weights of many updates, while one of them keeps its
// connections ten times as long as the others. It must not get more connections than they have.
func TestLevels(t *testing.T) {
	const backends, updates, arrivals = 5, 400, 40
	random := rand.New(rand.NewPCG(1, 2))
	all := make([]candidate, backends)
	for i := range all {
		all[i].weight = 1
	}
	worst := 0.0
	for update := range updates {
		weights := level(all, arrivals)
		sum := 0
		for _, w := range weights {
			sum += int(w)
		}
		for range arrivals {
			n := random.IntN(sum)
			for i, w := range weights {
				if n -= int(w); n < 0 {
					all[i].open++
					break
				}
			}
		}
		for i := range all {
			end := 2.0 // of so many connections, one ends in each update
			if i == 0 {
				end = 20
			}
			all[i].open -= all[i].open / end
		}
		if update > updates/2 {
			for i := range all[1:] {
				worst = max(worst, all[0].open-all[i+1].open)
			}
		}
	}
	// Evenly drawn connections would leave the slow one with 19 times as many as the others.
	if worst > arrivals {
		t.Errorf("the slow backend had %v connections more than another: %+v", worst, all)
	}
}
