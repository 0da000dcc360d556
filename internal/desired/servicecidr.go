// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"fmt"
	"net/netip"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
)

// serviceCIDRs are the ranges of all ServiceCIDR objects, and what was told.
type serviceCIDRs struct {
	byName map[string][]netip.Prefix
	told   []netip.Prefix
	dirty  bool
}

// SetServiceCIDR takes a ServiceCIDR that is new or has changed (KEP-1880).
func (s *State) SetServiceCIDR(in *networkingv1.ServiceCIDR) {
	var all []netip.Prefix
	for i, text := range in.Spec.CIDRs {
		p, ok := parsePrefix(text)
		if !ok {
			s.problems = append(s.problems, Problem{"ServiceCIDR " + in.Name, fmt.Sprintf("spec.cidrs[%d]", i), "not a range of addresses: " + text})
			continue
		}
		if !s.config.Without[FamilyOf(p.Addr())] {
			all = append(all, p)
		}
	}
	if s.serviceCIDRs.byName == nil {
		s.serviceCIDRs.byName = map[string][]netip.Prefix{}
	}
	s.serviceCIDRs.byName[in.Name] = all
	s.serviceCIDRs.dirty = true
}

// DeleteServiceCIDR takes note that a ServiceCIDR is gone.
func (s *State) DeleteServiceCIDR(name string) {
	delete(s.serviceCIDRs.byName, name)
	s.serviceCIDRs.dirty = true
}

// change is what differs from what was told, which counts as told from here.
// There are few ranges, so all are looked at.
func (c *serviceCIDRs) change() (out PrefixChange) {
	if !c.dirty {
		return out
	}
	c.dirty = false
	var all []netip.Prefix
	for _, ps := range c.byName {
		all = append(all, ps...)
	}
	all = disjoint(all)
	for _, p := range all {
		if !slices.Contains(c.told, p) {
			out.Added = append(out.Added, p)
		}
	}
	for _, p := range c.told {
		if !slices.Contains(all, p) {
			out.Removed = append(out.Removed, p)
		}
	}
	c.told = all
	return out
}

// full lists all that was told.
func (c *serviceCIDRs) full() PrefixChange { return PrefixChange{Added: slices.Clone(c.told)} }
