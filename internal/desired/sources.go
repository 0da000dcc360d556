// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// sourceRanges parses spec.loadBalancerSourceRanges. A family without a range, or with a range of all addresses, is
// open to all clients. If any range is invalid, a family without a range is closed instead.
func (s *State) sourceRanges(out *serviceSpec, in *corev1.Service) {
	for i, text := range in.Spec.LoadBalancerSourceRanges {
		p, ok := parsePrefix(strings.TrimSpace(text)) // the API accepts spaces
		if !ok {
			out.closed = true
			s.serviceProblem(in, fmt.Sprintf("spec.loadBalancerSourceRanges[%d]", i), "not a range of addresses: "+text)
			continue
		}
		f := FamilyOf(p.Addr())
		out.open[f] = out.open[f] || p.Bits() == 0
		out.ranges[f] = append(out.ranges[f], p)
	}
	for f := range out.ranges {
		if out.open[f] {
			out.ranges[f] = nil
		}
		out.ranges[f] = Disjoint(out.ranges[f])
	}
}

// Disjoint masks and sorts ranges, in place, and drops those that another range contains.
func Disjoint(all []netip.Prefix) (out []netip.Prefix) {
	for i := range all {
		all[i] = all[i].Masked()
	}
	slices.SortFunc(all, func(a, b netip.Prefix) int { // larger ranges first
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	for _, p := range all {
		if n := len(out); n == 0 || !out[n-1].Overlaps(p) {
			out = append(out, p)
		}
	}
	return out
}

// deriveSources computes spec.sources from a Service's source ranges. If the ranges contain this node's address, the
// load balancer's addresses are added: if such an address is assigned to an interface of the node, the node's own
// connections to it have it as their source. An unchanged result keeps the pointer.
func (s *State) deriveSources(spec *serviceSpec) {
	for f := range Family(families) {
		ranges := spec.ranges[f]
		if len(ranges) == 0 && !(spec.closed && !spec.open[f]) {
			spec.sources[f] = nil
			continue
		}
		node := s.node.ips[f]
		if slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return node.IsValid() && p.Contains(node) }) {
			ranges = slices.Clone(ranges)
			for _, a := range spec.external {
				if a.kind == LoadBalancerIP && FamilyOf(a.ip) == f {
					ranges = append(ranges, netip.PrefixFrom(a.ip, a.ip.BitLen()))
				}
			}
			ranges = Disjoint(ranges)
		}
		if old := spec.sources[f]; old == nil || !slices.Equal(old.ranges, ranges) {
			spec.sources[f] = &SourceRanges{ranges}
		}
	}
}
