// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"cmp"
	"maps"
	"slices"
)

// Loads returns how many connections a backend has now, and how many of them are new since the
// count before.
type Loads func(Protocol, Backend) (open, recent int)

// FollowsLoads reports whether there are Services with LeastConnections.
func (s *State) FollowsLoads() bool { return len(s.following) > 0 }

// LoadsChanged has the next Change follow the loads ([Config.Loads]) of all such Services that have
// connections, or had some before.
func (s *State) LoadsChanged() {
	for e, had := range s.following {
		has := s.config.Loads != nil && e.hasLoad(s.config.Loads)
		if has || had {
			s.markDirty(e)
		}
		s.following[e] = has
	}
}

func (e *endpoints) hasLoad(loads Loads) bool {
	return slices.ContainsFunc(e.entries, func(en entry) bool {
		open, _ := loads(e.port.protocol, en.backend)
		return open > 0
	})
}

func (e *endpoints) followsLoads() bool {
	spec := e.port.service.spec
	return spec != nil && spec.Scheduler.Algorithm == LeastConnections
}

// follow records whether the choice of endpoints follows loads.
func (s *State) follow(e *endpoints) {
	_, known := s.following[e]
	switch follows := e.followsLoads() && len(e.entries) > 0; {
	case follows && !known:
		s.following[e] = false
	case !follows:
		delete(s.following, e)
	}
}

// level replaces the weights of backends by those that level their numbers of connections.
func (l Loads) level(p Protocol, weights map[Backend]uint64) {
	backends := slices.SortedFunc(maps.Keys(weights), Backend.Compare)
	all := make([]candidate, len(backends))
	expected := 0
	for i, b := range backends {
		open, recent := l(p, b)
		all[i] = candidate{float64(open), float64(weights[b])}
		expected += recent
	}
	for i, w := range level(all, float64(expected)) {
		weights[backends[i]] = uint64(w) * levelUnit
	}
}

// levelSteps is the greatest result of level. There are few steps, so that few slots change with
// an update. levelUnit makes the greatest weight the default.
const (
	levelSteps = 10
	levelUnit  = DefaultWeight / levelSteps
)

// candidate is a backend of a pool whose choice follows the numbers of connections.
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
