// SPDX-License-Identifier: Apache-2.0

package desired

// conditionCounts counts, for an endpoint that slices list several times, the entries in
// which each bit of its condition is set. This happens while a controller moves an endpoint
// between slices, and in slices that are written by hand.
type conditionCounts [conditionBits]uint16

func (s *conditionCounts) add(c condition, n int) {
	for i := range s {
		if c&(1<<i) != 0 {
			s[i] = uint16(int(s[i]) + n)
		}
	}
}

// merged returns the condition over a number of entries: every bit that any entry has, but
// terminating only if all have it.
func (s *conditionCounts) merged(entries uint16) (c condition) {
	for i, n := range s {
		if bit := condition(1) << i; n > 0 && (bit != terminating || n == entries) {
			c |= bit
		}
	}
	return c
}
