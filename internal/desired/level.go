// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"
)

// Loads counts the connections of this node, as implemented by load.Counter.
type Loads interface {
	// Of returns the load of a backend.
	Of(Protocol, Backend) Load

	// Changed returns the destinations of clients to which connections have begun or ended
	// since the last call.
	Changed() []FrontendKey
}

// Load describes the connections of a backend. In its sums, what was some time ago counts less, by
// a factor of e for each [LoadMemory].
type Load struct {
	Open  int     // connections now
	Begun float64 // number of connections
	Ended float64 // number of connections
	Held  float64 // time for which connections were open, in seconds of one connection
}

// LoadMemory is the time for which loads are remembered. LoadPeriod is the time between two calls
// of [State.LoadsChanged].
const (
	LoadMemory = 10 * time.Second
	LoadPeriod = 250 * time.Millisecond
)

// FollowsLoads reports whether there are Services with LeastConnections.
func (s *State) FollowsLoads() bool { return len(s.following) > 0 }

// LoadsChanged has the next Change follow the loads ([Config.Loads]) of such Services whose
// connections have begun or ended since the last call. It reports whether there are any. Other
// Services cost nothing.
func (s *State) LoadsChanged() (changed bool) {
	for _, key := range s.config.Loads.Changed() {
		if e := s.endpointsAt(key); e != nil && s.following[e] {
			s.markDirty(e)
			changed = true
		}
	}
	return changed
}

// endpointsAt returns the endpoints that answer at an address; nil if there are none.
func (s *State) endpointsAt(key FrontendKey) *endpoints {
	f := s.frontends[key]
	if f == nil {
		f = s.frontends[key.NodePort()]
	}
	if f == nil || len(f.claims) == 0 {
		return nil
	}
	return f.claims[0].port.endpoints[FamilyOf(key.Addr())]
}

func (e *endpoints) followsLoads() bool {
	spec := e.port.service.spec
	return spec != nil && spec.Scheduler.Algorithm == LeastConnections
}

// follow records whether the choice of endpoints follows loads.
func (s *State) follow(e *endpoints) {
	if e.followsLoads() && len(e.entries) > 0 {
		s.following[e] = true
	} else {
		delete(s.following, e)
	}
}

// levelWeights replaces the weights of backends by those that level their loads. former are the
// weights that were reported, except [DefaultWeight].
func levelWeights(l Loads, p Protocol, weights, former map[Backend]uint64) {
	backends := slices.SortedFunc(maps.Keys(weights), Backend.Compare)
	loads := make([]Load, len(backends))
	var sum Load
	for i, b := range backends {
		loads[i] = l.Of(p, b)
		sum.Begun += loads[i].Begun
		sum.Ended += loads[i].Ended
		sum.Held += loads[i].Held
	}
	all := make([]candidate, len(backends))
	for i, b := range backends {
		all[i] = loads[i].candidate(float64(weights[b]), &sum)
	}
	for i, w := range level(all, sum.Begun*LoadPeriod.Seconds()/LoadMemory.Seconds()) {
		b := backends[i]
		was, other := former[b]
		if !other {
			was = DefaultWeight
		}
		now := uint64(w) * levelUnit
		// A step up or down is mostly noise.
		if now > 0 && was > 0 && now <= was+levelUnit && was <= now+levelUnit {
			now = was
		}
		weights[b] = now
	}
}

// Until a backend has had more connections, and for longer, its connections are taken to be as long
// as the average of its pool.
const (
	usualConnections = 2
	usualSeconds     = 0.1
)

// candidate returns a backend with a weight for [level]. If its connections take a time t on
// average, a share of exp(-period/t) of those that are open is still open after a period. Of
// those that begin during the period, the share that is open at its end follows. So a backend
// gets its weight divided by that share.
func (l *Load) candidate(weight float64, pool *Load) candidate {
	if pool.Ended == 0 || pool.Held == 0 {
		return candidate{float64(l.Open), weight}
	}
	average := pool.Held / pool.Ended
	t := (l.Held + usualSeconds + usualConnections*average) / (l.Ended + usualSeconds/average + usualConnections)
	periods := LoadPeriod.Seconds() / t
	stay := -math.Expm1(-periods) / periods
	return candidate{float64(l.Open) * math.Exp(-periods) / stay, weight / stay}
}

// levelSteps is the greatest result of level. There are few steps, so that few slots change with
// an update. levelUnit makes the greatest weight the default.
const (
	levelSteps = 10
	levelUnit  = DefaultWeight / levelSteps
)

// candidate is a backend of a pool whose choice follows loads.
type candidate struct {
	open   float64 // connections that it has now
	weight float64
}

// level returns the weights, from 0 to levelSteps, with which candidates get connections until the
// next update, when so many of these are expected to be open. The connections level the candidates, in
// proportion to their own weights, as water fills a vessel from its lowest point. No candidate
// gets more than twice its share: all nodes find a new endpoint without connections at the
// same moment.
func level(all []candidate, expected float64) []uint8 {
	const most = 2
	var order []int
	total := 0.0
	for i, c := range all {
		if c.weight > 0 {
			order = append(order, i)
			total += c.weight
		}
	}
	slices.SortStableFunc(order, func(i, j int) int {
		return cmp.Compare(all[i].open*all[j].weight, all[j].open*all[i].weight)
	})
	expected = max(expected, float64(len(order)))
	gets := make([]float64, len(all))
	highest := 0.0
	for left := expected; len(order) > 0; {
		height := fill(all, order, left)
		lacks := func(i int) float64 { return max(0, height*all[i].weight-all[i].open) }
		i := order[0] // lacks most for its weight
		limit := most * expected * all[i].weight / total
		if lacks(i) <= limit {
			for _, i := range order {
				gets[i] = lacks(i)
				highest = max(highest, gets[i])
			}
			break
		}
		gets[i], left, order = limit, left-limit, order[1:]
		highest = max(highest, limit)
	}
	weights := make([]uint8, len(all))
	for i, n := range gets {
		if n > 0 {
			weights[i] = uint8(n/highest*levelSteps + 0.5)
		}
	}
	return weights
}

// fill returns the level, in connections for a weight of 1, of candidates in the order of their
// levels when a number of connections has been added to the lowest ones.
func fill(all []candidate, order []int, water float64) (height float64) {
	width := 0.0
	for _, i := range order {
		c := all[i]
		if width > 0 && c.open/c.weight >= water/width {
			break
		}
		water, width = water+c.open, width+c.weight
	}
	return water / width
}
