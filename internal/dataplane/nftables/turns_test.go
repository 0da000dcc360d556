// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// TestTurnsOfOneService: the only Service with round robin has a counter, however often its number of
// endpoints changes.
func TestTurnsOfOneService(t *testing.T) {
	x := onDemand{chains: map[int]bool{}}
	p := &pool{}
	p.Algorithm = desired.RoundRobin
	for size := 2; size <= 2*MaxCounters; size++ {
		p.Slots = make([]desired.Backend, size)
		if x.assignCounter(p, false); p.counter != (counter{int32(size), 1}) {
			t.Fatalf("%d endpoints: counter %+v", size, p.counter)
		}
	}
}
