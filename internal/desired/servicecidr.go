// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"fmt"
	"net/netip"

	networkingv1 "k8s.io/api/networking/v1"
)

// SetServiceCIDR adds or replaces a ServiceCIDR (KEP-1880).
func (s *State) SetServiceCIDR(in *networkingv1.ServiceCIDR) {
	var all []netip.Prefix
	for i, text := range in.Spec.CIDRs {
		p, ok := parsePrefix(text)
		if !ok || p.Bits() == 0 { // all addresses would be dropped
			s.addProblem(Problem{Object: "ServiceCIDR " + in.Name, Field: fmt.Sprintf("spec.cidrs[%d]", i), Reason: "not a range of addresses, or of all: " + text})
			continue
		}
		if !s.config.Without[FamilyOf(p.Addr())] {
			all = append(all, p)
		}
	}
	s.serviceCIDRs[in.Name] = all
	s.selectServiceCIDRs()
}

// DeleteServiceCIDR deletes a ServiceCIDR.
func (s *State) DeleteServiceCIDR(name string) {
	delete(s.serviceCIDRs, name)
	s.selectServiceCIDRs()
}

// selectServiceCIDRs updates the set of ranges. All are compared, because there are few.
func (s *State) selectServiceCIDRs() {
	var was, all []netip.Prefix
	for m := range s.sets[ServiceCIDRs].all {
		if s.sets[ServiceCIDRs].has(m) {
			was = append(was, m.Prefix())
		}
	}
	for _, ps := range s.serviceCIDRs {
		all = append(all, ps...)
	}
	all = Disjoint(all)
	for _, p := range subtract(was, all) {
		s.sets[ServiceCIDRs].use(Range(p), -1)
	}
	for _, p := range subtract(all, was) {
		s.sets[ServiceCIDRs].use(Range(p), 1)
	}
}
