// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"math/rand/v2"
	"testing"
)

// TestShares counts random conditions in and some out again, and compares with
// merging those that are left.
func TestShares(t *testing.T) {
	for range 10_000 {
		var s shares
		var left []condition
		for range 1 + rand.IntN(4) {
			c := condition(rand.Uint32()) & (1<<conditionBits - 1)
			s.count(c, 1)
			if rand.IntN(3) == 0 {
				s.count(c, -1)
			} else {
				left = append(left, c)
			}
		}
		if len(left) == 0 {
			continue
		}
		want := left[0]
		for _, c := range left[1:] {
			want = want.merge(c)
		}
		if got := s.merged(uint16(len(left))); got != want {
			t.Fatalf("%b merged are %b, want %b", left, got, want)
		}
	}
	if hintsNode != 1<<(conditionBits-1) {
		t.Errorf("there are bits beyond %d", conditionBits)
	}
}
