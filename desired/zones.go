// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"slices"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// zoneSet is a number for a set of zones; 0 is the empty set. Endpoints carry
// such numbers so that the zones they are meant for can be asked again when this
// node's zone becomes known, at two bytes an endpoint.
type zoneSet uint16

// zoneSets are the sets of zones that were ever seen. There are as many as a
// cluster has zones, or a few more.
type zoneSets struct {
	number map[string]zoneSet // by names, sorted and joined
	names  [][]string         // by number
}

// of is the number of a set, which gets one if it has none. When numbers run
// out, which takes 65,535 different sets, further ones count as not hinted.
func (z *zoneSets) of(hints []discoveryv1.ForZone) zoneSet {
	names := make([]string, 0, len(hints))
	for _, h := range hints {
		names = append(names, h.Name)
	}
	slices.Sort(names)
	key := strings.Join(names, ",") // no name has a comma: they are label values
	if n, ok := z.number[key]; ok {
		return n
	}
	if z.number == nil {
		z.number, z.names = map[string]zoneSet{}, [][]string{nil}
	}
	n := zoneSet(len(z.names))
	if n == 0 {
		return 0
	}
	z.number[key] = n
	z.names = append(z.names, names)
	return n
}

// zoneCondition is what zones an endpoint is meant for say about it.
func (s *State) zoneCondition(z zoneSet) condition {
	switch {
	case z == 0:
		return 0
	case s.node.zone != "" && slices.Contains(s.zones.names[z], s.node.zone):
		return zoneHint | hintsHere
	}
	return zoneHint
}

// rezone looks at all hints again, for another zone of this node's.
func (s *State) rezone() {
	for name, sl := range s.slices {
		to := &slice{}
		*to = *sl
		to.endpoints = slices.Clone(sl.endpoints)
		differs := false
		for i := range to.endpoints {
			e := &to.endpoints[i]
			if c := e.cond&^(zoneHint|hintsHere) | s.zoneCondition(e.zones); c != e.cond {
				e.cond, differs = c, true
			}
		}
		if differs {
			s.setSlice(name, to)
		}
	}
}
