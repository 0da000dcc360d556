// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"net/netip"
	"slices"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// frontendSets compares the sets of frontends with the rules.
func (r *reader) frontendSets() {
	check := func(k setKind, has func(dataplane.Target) bool) {
		for m := range r.sets[k] {
			if t, there := r.content.Frontends[keyOf(m)]; !there {
				r.fault("%s has %s, which is not a frontend", setTypes[k].name, keyOf(m))
			} else if !has(t) {
				r.fault("%s has %s", setTypes[k].name, keyOf(m))
			}
		}
		for f, t := range r.content.Frontends {
			if desired.FamilyOf(f.Addr()) == r.family && has(t) && !r.sets[k][frontendMember(f)] {
				r.fault("%s lacks %s", setTypes[k].name, f)
			}
		}
	}
	check(setExternal, func(t dataplane.Target) bool { return t.External })
	check(setLocal, func(t dataplane.Target) bool { return t.FromOutside != nil })
	empty := func(v desired.Verdict) func(dataplane.Target) bool {
		return func(t dataplane.Target) bool {
			none := t.Choice
			if len(none.Backends) > 0 && t.FromOutside != nil {
				none = *t.FromOutside
			}
			return len(none.Backends) == 0 && none.IfEmpty == v
		}
	}
	check(setReject, empty(desired.Reject))
	check(setDrop, empty(desired.Drop))
	for m := range r.sets[setRestricted] {
		t := r.content.Frontends[keyOf(m)]
		t.Sources = []netip.Prefix{}
		r.content.Frontends[keyOf(m)] = t
	}
	for m := range r.sets[setSources] {
		t := r.content.Frontends[keyOf(m)]
		if t.Sources == nil {
			r.fault("SOURCES has %s, which is not restricted", m)
		}
		t.Sources = append(t.Sources, m.Net)
		r.content.Frontends[keyOf(m)] = t
	}
	for m := range r.sets[setRestricted] {
		t := r.content.Frontends[keyOf(m)]
		slices.SortFunc(t.Sources, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
		t.Sources = unsplit(t.Sources)
		r.content.Frontends[keyOf(m)] = t
	}
}

// hairpins reads the addresses that are masqueraded when they send to themselves.
func (r *reader) hairpins() {
	for _, line := range r.leaves(chainHairpinTree) {
		p, err := netip.ParsePrefix(line["-s"])
		if err != nil || line["-d"] != line["-s"] || line["-g"] != chainMasquerade {
			r.fault("a rule of %s is not a hairpin's: %v", chainHairpinTree, line)
			continue
		}
		self := func(l rule) bool {
			q, err := netip.ParsePrefix(l["-s"])
			return err == nil && q.Contains(p.Addr())
		}
		if r.follow(chainHairpinTree, self) != chainMasquerade || !r.sets[setHairpin][addrMember(p.Addr())] {
			r.fault("%s is not masqueraded when sent to itself", p.Addr())
		}
		r.content.HairpinIPs[p.Addr()] = true
	}
	if n := len(r.sets[setHairpin]); n != len(r.leaves(chainHairpinTree)) {
		r.fault("HAIRPIN has %d addresses for %d rules", n, len(r.leaves(chainHairpinTree)))
	}
}
