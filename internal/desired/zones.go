// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"slices"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// zoneSets are the sets of zones that endpoints of one slice are meant for. An
// endpoint has its set's number, two bytes, so that they can be asked again when
// this node's zone becomes known.
type zoneSets [][]string

// zoneSet is the number of a set, from 1 on; 0 is the empty set.
type zoneSet uint16

// of is the number of a set, which gets one if it has none.
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

// names are the zones of a set.
func (z zoneSets) names(n zoneSet) []string {
	if n == 0 {
		return nil
	}
	return z[n-1]
}

// union is the set of the zones that are in one of two.
func (z *zoneSets) union(a, b zoneSet) zoneSet {
	if a == b || b == 0 {
		return a
	}
	return z.of(slices.Concat(z.names(a), z.names(b)))
}

// zoneNames are the names in hints. They are copied, as the object they are part
// of is not to be kept in memory for them.
func zoneNames(hints []discoveryv1.ForZone) (names []string) {
	for _, h := range hints {
		names = append(names, strings.Clone(h.Name))
	}
	return names
}

// zoneCondition is what the zones that an endpoint is meant for say about it.
func (s *State) zoneCondition(names []string) condition {
	switch {
	case len(names) == 0:
		return 0
	case s.node.zone != "" && slices.Contains(names, s.node.zone):
		return zoneHint | hintsHere
	}
	return zoneHint
}

// rezone looks at all hints again, for another zone of this node's.
func (s *State) rezone() {
	for name, sl := range s.slices {
		if len(sl.zones) == 0 {
			continue
		}
		to := &slice{}
		*to = *sl
		to.endpoints = slices.Clone(sl.endpoints)
		for i := range to.endpoints {
			e := &to.endpoints[i]
			e.cond = e.cond&^(zoneHint|hintsHere) | s.zoneCondition(sl.zones.names(e.zones))
		}
		s.setSlice(name, to)
	}
}
