// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"slices"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"
)

// zones are the zone of an endpoint and those in its hints.
type zones struct {
	own   string   // "" if unknown
	hints []string // in order
}

func (z zones) equal(o zones) bool { return z.own == o.own && slices.Equal(z.hints, o.hints) }

// areOf reports whether these are an endpoint's zones, if it has its hints in order. It copies
// nothing: nearly all endpoints of a slice have one of a few zones.
func (z *zones) areOf(e *discoveryv1.Endpoint) bool {
	var hints []discoveryv1.ForZone
	if e.Hints != nil {
		hints = e.Hints.ForZones
	}
	return z.own == ptr.Deref(e.Zone, "") && slices.EqualFunc(z.hints, hints, func(name string, h discoveryv1.ForZone) bool { return name == h.Name })
}

// zonesOf copies the names of an endpoint's zones. Substrings would keep
// the object's memory alive. A Node's zone is a label of at most 63 characters, so that no longer name is one.
func zonesOf(e *discoveryv1.Endpoint) (z zones) {
	keep := func(name string) string { return strings.Clone(name[:min(len(name), 64)]) }
	z.own = keep(ptr.Deref(e.Zone, ""))
	if e.Hints != nil {
		for _, h := range e.Hints.ForZones {
			z.hints = append(z.hints, keep(h.Name))
		}
		slices.Sort(z.hints)
		z.hints = slices.Compact(z.hints)
	}
	return z
}

// zoneSets are the distinct zones of the endpoints of one slice. An endpoint stores the number
// of its own, in two bytes, so that they can be evaluated again when this node's zone changes.
type zoneSets []zones

// zoneSet is the number of zones in a zoneSets, starting at 1. 0 is the empty set.
type zoneSet uint16

// few is how many zones are compared with those of an endpoint; further ones are looked up. Endpoints whose zones are
// beyond the first mostZones of a slice have none: in honest slices there are few, and names take memory.
const few, mostZones = 8, 100

// of returns the number of an endpoint's zones, and adds them if needed. index has those after the first few.
func (z *zoneSets) of(e *discoveryv1.Endpoint, index map[string]zoneSet) zoneSet {
	first := (*z)[:min(few, len(*z))]
	for i := range first {
		if first[i].areOf(e) {
			return zoneSet(i + 1)
		}
	}
	want := zonesOf(e)
	if want.own == "" && len(want.hints) == 0 {
		return 0
	}
	if i := slices.IndexFunc(first, want.equal); i >= 0 { // with its hints in another order
		return zoneSet(i + 1)
	}
	if len(first) < few {
		*z = append(*z, want)
		return zoneSet(len(*z))
	}
	key := strings.Join(append([]string{want.own}, want.hints...), "\x00")
	if index[key] == 0 && len(*z) < mostZones {
		*z = append(*z, want)
		index[key] = zoneSet(len(*z))
	}
	return index[key]
}

// get returns the zones with a number.
func (z zoneSets) get(n zoneSet) (none zones) {
	if n == 0 {
		return none
	}
	return z[n-1]
}

// zoneCondition returns the bits of a condition that depend on zones.
func (s *State) zoneCondition(z zones) (c condition) {
	if len(z.hints) > 0 {
		c |= zoneHint
	}
	if here := s.node.zone; here != "" {
		if slices.Contains(z.hints, here) {
			c |= zoneMatches
		}
		if z.own == here {
			c |= inZone
		}
	}
	return c
}

// updateZones evaluates the zones of all endpoints again after this node's zone changed.
func (s *State) updateZones() {
	for name, sl := range s.slices {
		if len(sl.zones) == 0 {
			continue
		}
		to := &slice{}
		*to = *sl
		to.endpoints = slices.Clone(sl.endpoints)
		for i := range to.endpoints {
			e := &to.endpoints[i]
			e.cond = e.cond&^(zoneHint|zoneMatches|inZone) | s.zoneCondition(sl.zones.get(e.zones))
		}
		s.setSlice(name, to)
	}
}
