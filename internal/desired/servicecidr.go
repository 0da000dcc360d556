// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"fmt"
	"net/netip"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
)

// serviceCIDRs holds the ranges of all ServiceCIDR objects, and the reported ranges.
type serviceCIDRs struct {
	byName   map[string][]netip.Prefix
	reported []netip.Prefix
	dirty    bool
}

// SetServiceCIDR adds or replaces a ServiceCIDR (KEP-1880).
func (s *State) SetServiceCIDR(in *networkingv1.ServiceCIDR) {
	var all []netip.Prefix
	for i, text := range in.Spec.CIDRs {
		p, ok := parsePrefix(text)
		if !ok || p.Bits() == 0 { // all addresses would be dropped
			s.problems = append(s.problems, Problem{Object: "ServiceCIDR " + in.Name, Field: fmt.Sprintf("spec.cidrs[%d]", i), Reason: "not a range of addresses, or of all: " + text})
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

// DeleteServiceCIDR deletes a ServiceCIDR.
func (s *State) DeleteServiceCIDR(name string) {
	delete(s.serviceCIDRs.byName, name)
	s.serviceCIDRs.dirty = true
}

// change returns the difference from the last report and marks it as reported. All
// ranges are compared, because there are few.
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
	out = PrefixChange{Added: subtract(all, c.reported), Removed: subtract(c.reported, all)}
	c.reported = all
	return out
}

func (c *serviceCIDRs) full() PrefixChange { return PrefixChange{Added: slices.Clone(c.reported)} }
