// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
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
// Ports win over ranges, unless a range of another Service is served that has precedence. Of two ranges at one
// address that overlap, one is served.
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
	out.portRanges = len(all)
	if !s.ranged {
		s.ranged = true
		for _, f := range s.frontends {
			s.noteFrontend(f)
		}
	}
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
		id := portID{name: strings.Clone(item), protocol: protocols[corev1.Protocol(strings.ToUpper(protocol))], number: uint16(first), last: uint16(last)}
		switch {
		case len(all) == mostRanges:
			return nil, fmt.Errorf("more than %d ranges", mostRanges)
		case protocol == "" || id.protocol == 0 || len(item) > len("sctp/10000-20000") || bad != nil || bad2 != nil || first == 0 || first > last:
			return nil, fmt.Errorf("%q is neither all nor a range such as udp/10000-20000", item)
		case slices.ContainsFunc(all, func(o portID) bool {
			return o.protocol == id.protocol && o.number <= id.last && id.number <= o.last
		}):
			return nil, fmt.Errorf("%s overlaps with another range", item)
		}
		all = append(all, id)
	}
	return all, nil
}

// IsRange reports whether the frontend has a range of ports.
func (k FrontendKey) IsRange() bool { return k.Last != 0 }

// Overlaps reports whether two frontends have ports in common.
func (k FrontendKey) Overlaps(o FrontendKey) bool {
	return k.Addr() == o.Addr() && k.Protocol == o.Protocol && k.Port() <= max(o.Port(), o.Last) && o.Port() <= max(k.Port(), k.Last)
}

// has reports whether a range has a port.
func (k FrontendKey) has(port uint16) bool { return k.Port() <= port && port <= k.Last }

// Part is a part of a range.
type Part struct {
	First, Last uint16
	Turn
}

// Turn is when a packet to a part is the range's. Before Linux 6.17, a look-up can miss a port while it is replaced.
type Turn uint8

// The turns.
const (
	LastTurn       Turn = iota // after two look-ups of all kinds of frontends
	FirstTurn                  // after one, at a ClusterIP: no other frontend has a port of the part
	ExternalTurn               // after two of external frontends: others are not at the address
	RestrictedTurn             // the same, if the client is in [Frontend.Sources]
)

// PartsOf lists the parts of a range; none for a port.
func (f *Frontend) PartsOf() (all []Part) {
	if f.Parts != nil {
		return *f.Parts
	} else if f.IsRange() {
		all = []Part{{First: f.Port(), Last: f.Last}}
	}
	return all
}

// mostApart is how many ports of its Service a range may have that is divided: each part is an interval.
const mostApart = 8

// divide returns the parts of a range at a ClusterIP with other ports.
func (p *port) divide(others []*port) *[]Part {
	apart, from := []int{int(p.last) + 1}, int(p.number)
	for _, o := range others {
		if n := int(o.number); o.protocol == p.protocol && from <= n && n <= int(p.last) {
			apart = append(apart, n)
		}
	}
	if len(apart) > mostApart+1 {
		return p.inTurn(LastTurn)
	}
	var all []Part
	slices.Sort(apart)
	for _, n := range apart {
		if from < n {
			all = append(all, Part{uint16(from), uint16(n - 1), FirstTurn})
		}
		if from = n + 1; n <= int(p.last) {
			all = append(all, Part{uint16(n), uint16(n), LastTurn})
		}
	}
	return &all
}

func (p *port) inTurn(t Turn) *[]Part { return &[]Part{{p.number, p.last, t}} }

// parts returns those of a range. At a ClusterIP that no other Service has, they follow from its own Service: what others
// claim there is no ClusterIP, and loses.
func (s *State) parts(c claim, k FrontendKey) *[]Part {
	switch owners := s.sets[ClusterIPs].all[Address(k.Addr())].users; {
	case c.kind == ClusterIP && owners == 1:
		return c.port.parts
	case owners > 0, s.sets[NodeAddresses].has(Address(k.Addr())):
		return nil
	case c.kind == LoadBalancerIP && c.port.service.spec.sources[FamilyOf(k.Addr())] != nil:
		return c.port.restricted
	}
	return c.port.external
}

// address has the frontends of one address. There are such records once there are ranges.
type address struct {
	ports  map[*frontend]bool
	ranges []*frontend
	served []*frontend // of the ranges. They do not overlap, and are in order of protocol and port
}

// noteFrontend adds a frontend to those of its address.
func (s *State) noteFrontend(f *frontend) {
	if !s.ranged {
		return
	}
	at := s.addresses[f.key.Addr()]
	if at == nil {
		at = &address{ports: map[*frontend]bool{}}
		s.addresses[f.key.Addr()] = at
	}
	if f.key.IsRange() {
		at.ranges = append(at.ranges, f)
	} else {
		at.ports[f] = true
	}
}

// forgetFrontend removes one. Ranges without claims are removed already.
func (s *State) forgetFrontend(f *frontend) {
	if at := s.addresses[f.key.Addr()]; at != nil {
		if delete(at.ports, f); len(at.ports)+len(at.ranges) == 0 {
			delete(s.addresses, f.key.Addr())
		}
	}
}

// touchRanges has the ranges at an address decided again by the next change.
func (s *State) touchRanges(a netip.Addr) {
	if at := s.addresses[a]; at != nil && len(at.ranges) > 0 {
		s.dirtyRanges[a] = true
	}
}

// loss is a Service that loses ports, and the range that has them, or that loses.
type loss struct {
	service *service
	of      *frontend
}

// decideRanges decides which ranges are served, and which ports they take from other Services.
func (s *State) decideRanges() {
	if !s.ranged {
		return
	}
	losses := map[loss]*frontend{} // the lowest port of each: there can be many
	for a := range s.dirtyRanges {
		at := s.addresses[a]
		s.decideRangesAt(at, losses)
		for f := range at.ports {
			s.decidePort(f, losses)
		}
	}
	clear(s.dirtyRanges)
	for _, f := range s.dirtyFrontends {
		if !f.key.IsRange() {
			s.decidePort(f, losses)
		}
	}
	for _, f := range slices.SortedFunc(maps.Values(losses), func(a, b *frontend) int {
		return cmp.Or(a.key.Compare(b.key.AddrPort), cmp.Compare(a.key.Protocol, b.key.Protocol), cmp.Compare(a.key.Last, b.key.Last))
	}) {
		s.reportContest(f, f.winner.key, f.winner.claims[0], f.claims[0])
	}
}

// decideRangesAt decides in the order of precedence, so that only ranges that are served outrank others.
func (s *State) decideRangesAt(at *address, losses map[loss]*frontend) {
	at.ranges = slices.DeleteFunc(at.ranges, func(r *frontend) bool { return len(r.claims) == 0 })
	slices.SortFunc(at.ranges, func(a, b *frontend) int { return a.claims[0].compare(b.claims[0]) })
	at.served = nil
	for _, r := range at.ranges {
		was, served := r.winner, false
		r.winner = nil
		switch i, w := at.find(r.key); {
		case !s.serves(r):
		case w == nil:
			at.served, served = slices.Insert(at.served, i, r), true
		default:
			r.winner = w
			losses[loss{r.claims[0].port.service, r}] = r
		}
		if r.winner != was || served != (r.reported != nil) || served && r.reported.Parts != s.parts(r.claims[0], r.key) {
			s.dirtyFrontend(r)
		}
	}
}

// find returns the place of a key among the ranges that are served, and the first of these that overlaps, or nil.
func (at *address) find(k FrontendKey) (int, *frontend) {
	i, _ := slices.BinarySearchFunc(at.served, k, func(r *frontend, k FrontendKey) int {
		return cmp.Or(cmp.Compare(r.key.Protocol, k.Protocol), cmp.Compare(r.key.Last, k.Port()))
	})
	if i < len(at.served) && at.served[i].key.Overlaps(k) {
		return i, at.served[i]
	}
	return i, nil
}

// rangeAt returns the range that is served and has a port, or nil.
func (s *State) rangeAt(k FrontendKey) (r *frontend) {
	if at := s.addresses[k.Addr()]; at != nil {
		_, r = at.find(k)
	}
	return r
}

// decidePort decides between a port and the range of another Service that has it.
func (s *State) decidePort(f *frontend, losses map[loss]*frontend) {
	was, r := f.winner, s.rangeAt(f.key)
	if f.winner = nil; r != nil {
		if r.winner == f {
			r.winner = nil
			s.dirtyFrontend(r)
		}
		if s.serves(f) && r.claims[0].port.service != f.claims[0].port.service {
			s.decideBetween(f, r, losses)
		}
	}
	if f.winner != was {
		s.dirtyFrontend(f)
	}
}

func (s *State) decideBetween(f, r *frontend, losses map[loss]*frontend) {
	if l := (loss{f.claims[0].port.service, r}); r.claims[0].compare(f.claims[0]) < 0 {
		if f.winner = r; losses[l] == nil || f.key.Port() < losses[l].key.Port() {
			losses[l] = f
		}
	} else if r.winner == nil || f.key.Port() < r.winner.key.Port() {
		r.winner = f
		losses[loss{r.claims[0].port.service, r}] = r
	}
}

// isNodes reports whether a range is at an address of a Node, whose programs need ports that Kubernetes does
// not know. An interface may have the address of a load balancer: only SSH and the kubelet keep their ports there.
func (s *State) isNodes(r *frontend) bool {
	if !r.key.IsRange() || len(r.claims) == 0 || !r.claims[0].kind.External() {
		return false
	}
	a, own := r.key.Addr(), r.claims[0].kind == ExternalIP || r.key.has(22) || r.key.has(10250)
	return slices.Contains(s.node.listed, a) || s.balancers.others[a] > 0 || own && s.sets[OwnIPs].has(Address(a))
}

// exceptPorts lists the ports in ranges whose flows stay.
func (s *State) exceptPorts(all []StaleFlows) []StaleFlows {
	for i := range all {
		for _, k := range all[i].Frontends {
			if k.IsRange() {
				all[i].Ports = s.portsIn(all[i].Ports, k, k.Addr())
				if s.sets[NodeAddresses].all[Address(k.Addr())].reported {
					all[i].Ports = s.portsIn(all[i].Ports, k, k.NodePort().Addr())
				}
			}
		}
	}
	return all
}

// portsIn appends the destinations in a range that the frontends of an address serve.
func (s *State) portsIn(all []FrontendKey, r FrontendKey, a netip.Addr) []FrontendKey {
	if at := s.addresses[a]; at != nil {
		for f := range at.ports {
			if key := f.key.At(r.Addr()); key.Overlaps(r) && s.Serves(key) {
				all = append(all, key)
			}
		}
	}
	return all
}
