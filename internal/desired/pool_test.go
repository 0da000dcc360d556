// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"math/rand/v2"
	"testing"
)

// TestConditionMerge merges random conditions and compares every bit of the result with those
// of the conditions.
func TestConditionMerge(t *testing.T) {
	for range 10_000 {
		merged, n := terminating, 1+rand.IntN(4)
		var counts [conditionBits]int
		for range n {
			c := condition(rand.Uint32()) & (1<<conditionBits - 1)
			merged = merged.merge(c)
			for bit := range counts {
				counts[bit] += int(c >> bit & 1)
			}
		}
		for bit, has := range counts {
			want := has > 0
			if 1<<bit == terminating {
				want = has == n
			}
			if got := merged>>bit&1 == 1; got != want {
				t.Fatalf("bit %d of %b is %t; %d of %d conditions have it", bit, merged, got, has, n)
			}
		}
	}
	if inZone != 1<<(conditionBits-1) {
		t.Errorf("there are bits beyond %d", conditionBits)
	}
}
