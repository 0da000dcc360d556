// SPDX-License-Identifier: Apache-2.0

package forward

import "slices"

// Setting is how a node treats connections to Services.
type Setting struct {
	Name string `json:"name"`

	// Threshold is how many packets a connection has to have carried before it
	// is offloaded; 0 for never.
	Threshold uint32 `json:"threshold"`
}

// off is what other settings are compared with.
var off = Setting{"off", 0}

// Settings are what is measured and compared, off first. A threshold of one
// packet is no threshold: the first packet of a connection is never offloaded,
// and of TCP none before the connection is established.
var Settings = []Setting{off, {"no threshold", 1}, {"threshold 20", 20}}

// order is the order of n turns in a round. Over 2n rounds each one is as often
// first, second and so on as every other, and follows each other one.
func order(n, round int) []int {
	turns := make([]int, n)
	for i := range turns {
		turns[i] = (round + i) % n
	}
	if round/n%2 == 1 {
		slices.Reverse(turns)
	}
	return turns
}
