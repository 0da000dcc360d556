// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"slices"
	"testing"
)

// Each setting has each place in the order equally often, and comes equally often
// right after each other one in a round.
func TestOrderIsBalanced(t *testing.T) {
	for n := 1; n <= 4; n++ {
		places, follows := map[[2]int]int{}, map[[2]int]int{}
		for round := range 2 * n {
			turns := order(n, round)
			if sorted := slices.Sorted(slices.Values(turns)); !slices.Equal(sorted, []int{0, 1, 2, 3}[:n]) {
				t.Fatalf("%d settings, round %d: %v", n, round, turns)
			}
			for place, setting := range turns {
				places[[2]int{place, setting}]++
				if place > 0 {
					follows[[2]int{turns[place-1], setting}]++
				}
			}
		}
		for what, count := range places {
			if count != 2 {
				t.Errorf("%d settings: %d times in place %d is setting %d, want 2", n, count, what[0], what[1])
			}
		}
		for a := range n {
			for b := range n {
				ab, ba := follows[[2]int{a, b}], follows[[2]int{b, a}]
				if ab != ba {
					t.Errorf("%d settings: %d follows %d %d times, but %d follows %d %d times", n, b, a, ab, a, b, ba)
				}
			}
		}
	}
}
