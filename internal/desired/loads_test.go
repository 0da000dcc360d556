// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"encoding/binary"
	"errors"
	"math"
	"net/netip"
	"strings"
	"testing"
)

// FuzzLoads levels weights by any loads, after any former steps. No backend gets more than twice its
// share or less than a step of it, and one without weight gets nothing.
func FuzzLoads(f *testing.F) {
	const numbers, size = 5, 2 + 5*8 // of a backend: weight, former step, and a Load
	seed := func(weights, steps []byte, loads ...[numbers]float64) {
		var data []byte
		for i, l := range loads {
			data = append(data, weights[i], steps[i])
			for _, x := range l {
				data = binary.BigEndian.AppendUint64(data, math.Float64bits(x))
			}
		}
		f.Add(data)
	}
	type load = [numbers]float64 // Open, Begun, Ended, Failed, Held
	inf, tiny, nan := math.Inf(1), math.SmallestNonzeroFloat64, math.NaN()
	seed([]byte{100, 100}, []byte{9, 9}, load{11, 1, 1e-307, 0, 110}, load{10, 1, 1e-307, 0, 100}) // two hours after the last end
	seed([]byte{100, 100}, []byte{9, 9}, load{10, 0, tiny, 0, 100}, load{10, tiny, tiny, tiny, tiny})
	seed([]byte{100, 100, 100}, []byte{9, 9, 9}, load{0, 300, 300, 0, 0}, load{1, 10, 10, 0, 100}, load{1, 10, 10, 0, 100}) // one refuses
	seed([]byte{100, 100, 100}, []byte{9, 9, 9}, load{0, 300, 0, 300, 0}, load{1, 10, 10, 0, 100}, load{1, 10, 10, 0, 100}) // which is known
	seed([]byte{100, 100, 100}, []byte{9, 1, 1}, load{0, 400, 0, 0, 0}, load{100, 400, 0, 0, 0}, load{100, 400, 0, 0, 0})   // former steps count
	seed([]byte{100, 1, 0}, []byte{9, 9, 9}, load{0, inf, inf, inf, inf}, load{5, nan, nan, nan, nan}, load{-5, -1, -1, -1, -1})
	seed([]byte{0, 0}, []byte{0, 0}, load{1, 1, 1, 1, 1}, load{1, 1, 1, 1, 1})
	seed([]byte{7, 100, 50}, []byte{0, 3, 9}, load{1e300, 1e300, tiny, 1, 1e300}, load{-inf, tiny, 1e300, 1e300, tiny}, load{})
	f.Fuzz(func(t *testing.T, data []byte) {
		loads := &given{loads: map[Backend]Load{}}
		weights, former := map[Backend]uint64{}, map[Backend]uint64{}
		unit := uint64(levelSteps)
		for i := 0; len(data) >= size; i++ {
			b := NewBackend(netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 80))
			weights[b] = uint64(data[0]) % (DefaultWeight + 1)
			former[b] = weights[b] * (uint64(data[1])%levelSteps + 1)
			if weights[b]%levelSteps != 0 {
				unit = 1
			}
			var l load
			for n := range l {
				l[n] = math.Float64frombits(binary.BigEndian.Uint64(data[2+8*n:]))
			}
			loads.loads[b] = Load{Open: int(l[0]), Begun: l[1], Ended: l[2], Failed: l[3], Held: l[4]}
			data = data[size:]
		}
		now, total, sum := map[Backend]uint64{}, uint64(0), uint64(0)
		for b, w := range weights {
			now[b] = w
			former[b] /= unit
			total += w
		}
		levelWeights(loads, TCP, now, former)
		for _, w := range now {
			sum += w
		}
		for b, w := range weights {
			switch {
			case (w == 0) != (now[b] == 0):
				t.Errorf("weight %d becomes %d", w, now[b])
			case now[b]*total > 2*w*sum:
				t.Errorf("weight %d of %d becomes %d of %d, more than twice the share", w, total, now[b], sum)
			case 10*now[b]*total < w*sum:
				t.Errorf("weight %d of %d becomes %d of %d, less than a tenth of the share", w, total, now[b], sum)
			}
		}
	})
}

// TestLoadsUnknown: endpoints are chosen at random while connections are not counted, which is a Problem of
// Services that ask for it, also of those that come later.
func TestLoadsUnknown(t *testing.T) {
	for _, c := range []struct {
		byDefault       Algorithm
		problems, later int
	}{{Random, 1, 1}, {LeastConnections, 0, 0}} {
		loads := &given{loads: map[Backend]Load{}}
		s := New(Config{NodeName: "n1", Loads: loads, Balancing: Scheduler{Algorithm: c.byDefault}})
		d := demand{ports: 2, endpoints: 3, annotations: map[string]string{AnnotationScheduler: "lc"}}
		d.set(s)
		s.Full()
		loads.loads[s.pools[0].of.entries[0].backend] = Load{Open: 100, Begun: 100}
		loads.changed = []FrontendKey{{AddrPort: netip.MustParseAddrPort("10.96.0.1:1000"), Protocol: TCP}}
		look := func(what string, changed bool, want Algorithm, weights, problems int) {
			t.Helper()
			s.LoadsChanged()
			u := s.Change()
			got := 0
			for _, p := range s.Reported().Pools {
				got += len(p.Weights)
				if p.Algorithm != want {
					t.Errorf("%s: %s, want %s", what, p.Algorithm, want)
				}
			}
			if !changed || got != weights || len(u.Problems) != problems {
				t.Errorf("%s: changed: %v, %d weights, want %d; problems %v, want %d", what, changed, got, weights, u.Problems, problems)
			}
			for _, p := range u.Problems {
				if p.Service.Name != "web" || !strings.Contains(p.Error(), "at random, as connections cannot be counted: no events") {
					t.Errorf("%s: %v", what, p)
				}
			}
		}
		look("known", true, LeastConnections, 1, 0)
		look("unknown", s.LoadsKnown(errors.New("no events")), Random, 0, c.problems)
		look("still unknown", !s.LoadsKnown(errors.New("no events")), Random, 0, 0)
		d.set(s)
		look("a Service that comes later", true, Random, 0, c.later)
		look("known again", s.LoadsKnown(nil), LeastConnections, 1, 0)
	}
}

// TestFollowingEnds: no connections are counted for a Service that lost a port and was then deleted.
func TestFollowingEnds(t *testing.T) {
	s := New(Config{NodeName: "n1", Loads: &given{}})
	d := demand{ports: 2, endpoints: 3, annotations: map[string]string{AnnotationScheduler: "lc"}, dual: true}
	for _, now := range []demand{d, {ports: 1, endpoints: 3, annotations: d.annotations}} {
		now.set(s)
		s.Change()
		if !s.FollowsLoads() {
			t.Error("the Service's loads are not followed")
		}
	}
	s.DeleteService("default", "web")
	s.Change()
	if n := len(s.following); n > 0 {
		t.Errorf("loads of %d deleted ports are followed", n)
	}
}
