// SPDX-License-Identifier: Apache-2.0

package desired

// shares counts, for an endpoint that is in several slices, in how many each bit
// of its condition is set. That happens only while a controller moves it from one
// to another, or when somebody writes slices so.
type shares [conditionBits]uint16

func (s *shares) count(c condition, n int) {
	for i := range s {
		if c&(1<<i) != 0 {
			s[i] = uint16(int(s[i]) + n)
		}
	}
}

// merged is the condition over so many slices: the best that any of them says, so
// that the order in which they came is no matter.
func (s *shares) merged(slices uint16) (c condition) {
	for i, n := range s {
		if bit := condition(1) << i; n > 0 && (bit != terminating || n == slices) {
			c |= bit
		}
	}
	return c
}
