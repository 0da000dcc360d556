// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"math/rand/v2"
	"testing"
)

// TestConditionCounts adds random conditions and removes some again, and compares the
// result with merging the remaining ones.
func TestConditionCounts(t *testing.T) {
	for range 10_000 {
		var s conditionCounts
		var left []condition
		for range 1 + rand.IntN(4) {
			c := condition(rand.Uint32()) & (1<<conditionBits - 1)
			s.add(c, 1)
			if rand.IntN(3) == 0 {
				s.add(c, -1)
			} else {
				left = append(left, c)
			}
		}
		if len(left) == 0 {
			continue
		}
		want := left[0]
		for _, c := range left[1:] {
			want = (want|c)&^terminating | want&c&terminating
		}
		if got := s.merged(uint16(len(left))); got != want {
			t.Fatalf("%b merged are %b, want %b", left, got, want)
		}
	}
	if nodeMatches != 1<<(conditionBits-1) {
		t.Errorf("there are bits beyond %d", conditionBits)
	}
}
