// SPDX-License-Identifier: Apache-2.0

package desired

// conditionCounts counts, for an endpoint in several slices, the slices in which each
// bit of its condition is set. An endpoint is in several slices only while a controller
// moves it between them, or if slices are written by hand.
type conditionCounts [conditionBits]uint16

func (s *conditionCounts) add(c condition, n int) {
	for i := range s {
		if c&(1<<i) != 0 {
			s[i] = uint16(int(s[i]) + n)
		}
	}
}

// merged returns the condition over a number of slices, as [condition.merge] defines
// it.
func (s *conditionCounts) merged(slices uint16) (c condition) {
	for i, n := range s {
		if bit := condition(1) << i; n > 0 && (bit != terminating || n == slices) {
			c |= bit
		}
	}
	return c
}
