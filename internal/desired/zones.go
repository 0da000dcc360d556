// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"slices"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// zoneSets are the distinct sets of zones in the hints of one slice. An endpoint stores
// the number of its set, in two bytes, so that its hints can be evaluated again when
// this node's zone changes.
type zoneSets [][]string

// zoneSet is the number of a set, starting at 1. 0 is the empty set.
type zoneSet uint16

// of returns the number of a set, and adds the set if needed.
func (z *zoneSets) of(names []string) zoneSet {
	slices.Sort(names)
	names = slices.Compact(names)
	i := slices.IndexFunc(*z, func(has []string) bool { return slices.Equal(has, names) })
	if i < 0 {
		i = len(*z)
		*z = append(*z, names)
	}
	return zoneSet(i + 1)
}

func (z zoneSets) names(n zoneSet) []string {
	if n == 0 {
		return nil
	}
	return z[n-1]
}

// zoneNames returns copies of the names in hints, because substrings would keep the
// object's memory alive.
func zoneNames(hints []discoveryv1.ForZone) (names []string) {
	for _, h := range hints {
		names = append(names, strings.Clone(h.Name))
	}
	return names
}

// zoneCondition returns the bits of a condition for the zones in an endpoint's hints.
func (s *State) zoneCondition(names []string) condition {
	switch {
	case len(names) == 0:
		return 0
	case s.node.zone != "" && slices.Contains(names, s.node.zone):
		return zoneHint | zoneMatches
	}
	return zoneHint
}

// updateZoneHints evaluates all zone hints again after this node's zone changed.
func (s *State) updateZoneHints() {
	for name, sl := range s.slices {
		if len(sl.zones) == 0 {
			continue
		}
		to := &slice{}
		*to = *sl
		to.endpoints = slices.Clone(sl.endpoints)
		for i := range to.endpoints {
			e := &to.endpoints[i]
			e.cond = e.cond&^(zoneHint|zoneMatches) | s.zoneCondition(sl.zones.names(e.zones))
		}
		s.setSlice(name, to)
	}
}
