// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"fmt"
	"strings"
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/dataplane/dataplanetest"
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

// TestCountersRunOut has more Services with round robin than there are counters. The first ones without have a Problem, once.
// They get the counters of Services that go.
func TestCountersRunOut(t *testing.T) {
	k := newKernel(t)
	s := desired.New(desired.Config{NodeName: "n1"})
	dataplanetest.Reconcile(t, k.Dataplane, s)
	const services = MaxCounters + 20
	apply := func(what string, problems, random int) {
		t.Helper()
		c := s.Change()
		stats, err := k.Apply(t.Context(), &c.Change)
		if err != nil {
			t.Fatal(err)
		}
		lack := 0
		for _, f := range s.Reported().Frontends {
			if k.Describe(f.New, f.New.Pool).Scheduler == "random" {
				lack++
			}
		}
		if len(stats.Refused) != problems || lack != random {
			t.Errorf("%s: %d problems, want %d; %d frontends choose at random, want %d", what, len(stats.Refused), problems, lack, random)
		}
		for _, p := range stats.Refused {
			if want := fmt.Sprintf("chosen at random, as %d Service ports have round robin", MaxCounters); !strings.Contains(p.Error(), want) || !strings.HasPrefix(p.Service.Name, "web-") {
				t.Errorf("%s: %s", what, p)
			}
		}
		k.has(s)
		if err := k.checkAll(t); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	for i := 1; i <= services; i++ {
		scheduled(s, i, "rr")
	}
	apply("too many", mostLacking, 2*(services-MaxCounters))
	scheduled(s, 1+MaxCounters, "rr", 3)
	apply("one has another size", 0, 2*(services-MaxCounters))
	var gone []string
	for i := 1; i <= services; i++ {
		switch name := fmt.Sprint("web-", i); {
		case k.pools.Get(k.poolOf(t, name)).counter.number == 0:
			if i%2 == 0 {
				scheduled(s, i, "rr", 4) // in the same change
			}
		case len(gone) < MaxCounters-3:
			gone = append(gone, name)
		}
	}
	for _, name := range gone {
		s.DeleteService("default", name)
	}
	apply("most are deleted", 0, 0)
}
