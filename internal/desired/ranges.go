// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"errors"
	"fmt"
	"iter"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// AnnotationPortRanges of a Service has whole ranges of ports served at its addresses:
// "udp/10000-20000, tcp/3000-3100", or "all". A connection goes to the same port of an endpoint. A range is
// a port of the Service without a NodePort, which all of its EndpointSlices have.
//
// Ports win over ranges, unless a range of another Service has precedence. Of two ranges at one address that
// overlap, one is served.
const AnnotationPortRanges = "slipstream.io/port-ranges"

const rangesField = "metadata.annotations[" + AnnotationPortRanges + "]"

// mostRanges is how many a Service may have: the kernel copies a map of intervals with each change.
const mostRanges = 16

// portRanges parses the ranges of a Service.
func (s *State) portRanges(out *serviceSpec, in *corev1.Service) {
	value := in.Annotations[AnnotationPortRanges]
	if value == "" {
		return
	}
	all, err := parseRanges(value)
	if err == nil && s.config.NoRanges {
		err = errors.New("this proxy mode does not have ranges of ports; nftables mode has")
	}
	if err != nil {
		s.serviceProblem(in, rangesField, err.Error())
		return
	}
	out.portRanges, s.ranged = len(all), true
	for _, id := range all {
		id.sticky, id.shared = out.affinity != 0, out.affinity != 0
		out.ports = append(out.ports, &port{portID: id})
	}
}

func parseRanges(text string) (all []portID, err error) {
	if strings.TrimSpace(text) == "all" {
		text = "tcp/1-65535,udp/1-65535,sctp/1-65535"
	}
	for item := range strings.SplitSeq(text, ",") {
		item = strings.TrimSpace(item)
		protocol, ports, _ := strings.Cut(item, "/")
		from, to, isRange := strings.Cut(ports, "-")
		if !isRange {
			to = from
		}
		first, bad := strconv.ParseUint(from, 10, 16)
		last, bad2 := strconv.ParseUint(to, 10, 16)
		id := portID{name: item, protocol: protocolOf(corev1.Protocol(strings.ToUpper(protocol))), number: uint16(first), last: uint16(last)}
		switch {
		case protocol == "" || id.protocol == 0 || bad != nil || bad2 != nil || first == 0 || first > last:
			return nil, fmt.Errorf("%q is neither all nor a range such as udp/10000-20000", item)
		case slices.ContainsFunc(all, func(o portID) bool {
			return o.protocol == id.protocol && o.number <= id.last && id.number <= o.last
		}):
			return nil, fmt.Errorf("%s overlaps with another range", item)
		}
		all = append(all, id)
	}
	if len(all) > mostRanges {
		return nil, fmt.Errorf("%d ranges, and a Service may have %d", len(all), mostRanges)
	}
	return all, nil
}

// IsRange reports whether the frontend has a range of ports.
func (k FrontendKey) IsRange() bool { return k.Last != 0 }

// Overlaps reports whether two frontends have ports in common.
func (k FrontendKey) Overlaps(o FrontendKey) bool {
	return k.Addr() == o.Addr() && k.Protocol == o.Protocol && k.Port() <= max(o.Port(), o.Last) && o.Port() <= max(k.Port(), k.Last)
}

// isWhole reports whether a range has all ports.
func (k FrontendKey) isWhole() bool { return k.Port() == 1 && k.Last == math.MaxUint16 }

// forgetRange drops the record of a frontend without claims.
func (s *State) forgetRange(f *frontend) {
	if a := f.key.Addr(); f.key.IsRange() {
		if s.ranges[a] = slices.DeleteFunc(s.ranges[a], func(r *frontend) bool { return r == f }); len(s.ranges[a]) == 0 {
			delete(s.ranges, a)
		}
	}
}

// rangesOver yields the other frontends with ranges that overlap.
func (s *State) rangesOver(k FrontendKey) iter.Seq[*frontend] {
	return func(yield func(*frontend) bool) {
		for _, r := range s.ranges[k.Addr()] {
			if r.key != k && r.key.Overlaps(k) && len(r.claims) > 0 && !s.isNodes(r) && !yield(r) {
				return
			}
		}
	}
}

// portsIn calls visit with the frontends in a range that have one port.
func (s *State) portsIn(r FrontendKey, visit func(*frontend)) {
	see := func(f *frontend) {
		if f != nil && !f.key.IsRange() && len(f.claims) > 0 && f.key.Overlaps(r) {
			visit(f)
		}
	}
	if int(r.Last-r.Port()) > len(s.frontends) {
		for _, f := range s.frontends {
			see(f)
		}
		return
	}
	for n := int(r.Port()); n <= int(r.Last); n++ {
		see(s.frontends[FrontendKey{AddrPort: netip.AddrPortFrom(r.Addr(), uint16(n)), Protocol: r.Protocol}])
	}
}

// outranked reports whether a range of another Service has the ports of a frontend.
func (s *State) outranked(f *frontend) bool {
	for r := range s.rangesOver(f.key) {
		if r.claims[0].port.service != f.claims[0].port.service && r.claims[0].compare(f.claims[0]) < 0 {
			return true
		}
	}
	return false
}

// overlapping has frontends decided again that overlap with one whose claims have changed, and reports
// Services that lose ports to others.
func (s *State) overlapping(f *frontend) {
	for r := range s.rangesOver(f.key) {
		s.dirtyFrontend(r)
		s.reportOverlap(f, r)
	}
	if !f.key.IsRange() {
		return
	}
	s.dirtyFrontend(f)
	var lowest *frontend
	s.portsIn(f.key, func(x *frontend) {
		s.dirtyFrontend(x)
		if len(f.claims) > 0 && x.claims[0].port.service != f.claims[0].port.service && (lowest == nil || x.key.Port() < lowest.key.Port()) {
			lowest = x
		}
	})
	if lowest != nil && !s.isNodes(f) {
		s.reportOverlap(f, lowest)
	}
}

// reportOverlap reports the Service that loses ports, unless that was reported last. Only one of them for a
// range and ports in it: there can be many.
func (s *State) reportOverlap(a, b *frontend) {
	if len(a.claims) == 0 || s.isNodes(a) || a.claims[0].port.service == b.claims[0].port.service {
		return
	}
	if a.claims[0].compare(b.claims[0]) > 0 {
		a, b = b, a
	}
	s.reportContest(b, a.key, a.claims[0], b.claims[0])
}

// decideRanges has ranges decided again after addresses of nodes or API servers have changed.
func (s *State) decideRanges() {
	for _, all := range s.ranges {
		for _, f := range all {
			s.overlapping(f)
		}
	}
}

// isNodes reports whether a range is at an address of a Node, whose programs need ports that Kubernetes does
// not know. An interface may have the address of a load balancer: only a range of all ports is left out there.
func (s *State) isNodes(r *frontend) bool {
	a := r.key.Addr()
	return r.key.IsRange() && len(r.claims) > 0 && r.claims[0].kind.External() &&
		(slices.Contains(s.node.listed, a) || s.balancers.others[a] > 0 || r.key.isWhole() && s.sets[OwnIPs].has(Address(a)))
}

// reportNodes reports a range that is left out at an address of a node.
func (s *State) reportNodes(f *frontend) {
	if !s.isNodes(f) {
		return
	}
	loser := f.claims[0].port
	if contest := [2]ServicePort{{}, loser.name}; f.contest == nil || *f.contest != contest {
		f.contest = &contest
		s.addProblem(problemOf(loser.service.name, rangesField, f.key.String()+" is not served: "+f.key.Addr().String()+" is an address of a node, whose own programs need its ports"))
	}
}
