// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

// TestTrafficOfServices checks that Services keep their time series, that those of all others
// together never fall, and that a Service whose totals start again does not.
func TestTrafficOfServices(t *testing.T) {
	s := traffic{seen: map[types.NamespacedName]Traffic{}, own: map[types.NamespacedName]*Traffic{}}
	all := map[types.NamespacedName]Traffic{}
	for i := range MostServices + 2 {
		all[named(i)] = Traffic{Open: 1, Connections: float64(100 + i), Packets: 10, Bytes: 1000, Rejected: 6}
	}
	expect := func(what string, got *Traffic, want Traffic) {
		t.Helper()
		if got == nil || *got != want {
			t.Errorf("%s: %+v, want %+v", what, got, want)
		}
	}
	s.update(all)
	expect("the others", &s.other, Traffic{2, 201, 20, 2000, 12}) // 0 and 1
	all[named(0)] = Traffic{Open: 5, Connections: 1000, Packets: 20, Bytes: 3000, Rejected: 8}
	delete(all, named(1))
	all[named(2)] = Traffic{Connections: 7, Packets: 1, Bytes: 10, Rejected: 3} // counted from 0 again
	s.update(all)
	expect("the others", &s.other, Traffic{5, 201 + 900, 30, 4000, 14})
	expect("a Service that starts again", s.own[named(2)], Traffic{0, 109, 11, 1010, 9})
	delete(all, named(3))
	s.update(all)
	expect("a Service that takes a place", s.own[named(0)], Traffic{Open: 5})
	expect("the others", &s.other, Traffic{0, 1101, 30, 4000, 14})
	if len(s.own) != MostServices || s.own[named(3)] != nil {
		t.Errorf("%d Services have time series", len(s.own))
	}
}
