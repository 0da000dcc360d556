// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
)

// slice is what is kept of an EndpointSlice.
type slice struct {
	service   types.NamespacedName
	family    Family
	ports     []slicePort
	endpoints []sliceEndpoint
	zones     zoneSets // of the endpoints
}

// same says whether two versions of a slice mean the same. Either may be nil.
func (sl *slice) same(o *slice) bool {
	if sl == nil || o == nil {
		return sl == o
	}
	return sl.service == o.service && sl.family == o.family && slices.Equal(sl.ports, o.ports) &&
		slices.Equal(sl.endpoints, o.endpoints) && slices.EqualFunc(sl.zones, o.zones, slices.Equal)
}

// slicePort is a port that all endpoints of the slice have, under the name by
// which Services refer to it.
type slicePort struct {
	name     string
	protocol Protocol
	number   uint16
}

type sliceEndpoint struct {
	ip    ipBytes
	cond  condition
	zones zoneSet // for which it is meant
}

// compactSlice takes from an EndpointSlice what matters to this node; nil when
// nothing does.
func (s *State) compactSlice(in *discoveryv1.EndpointSlice) *slice {
	name := in.Labels[discoveryv1.LabelServiceName]
	if _, headless := in.Labels[corev1.IsHeadlessService]; name == "" || headless {
		return nil
	}
	out := &slice{service: types.NamespacedName{Namespace: in.Namespace, Name: name}}
	switch in.AddressType {
	case discoveryv1.AddressTypeIPv4:
		out.family = IPv4
	case discoveryv1.AddressTypeIPv6:
		out.family = IPv6
	default:
		return nil // FQDN endpoints are for DNS
	}
	if s.config.Without[out.family] {
		return nil
	}
	for i := range in.Ports {
		p := slicePort{}
		if n := in.Ports[i].Name; n != nil {
			p.name = *n
		}
		p.protocol = TCP
		if n := in.Ports[i].Protocol; n != nil {
			p.protocol = protocolOf(*n)
		}
		if n := in.Ports[i].Port; n != nil && *n > 0 && *n < 1<<16 {
			p.number = uint16(*n)
		}
		if p.number != 0 && p.protocol != 0 && !slices.ContainsFunc(out.ports, p.sameName) {
			out.ports = append(out.ports, p)
		}
	}
	var unusable, first int // number, and index of the first one
	out.endpoints = make([]sliceEndpoint, 0, len(in.Endpoints))
	for i := range in.Endpoints {
		e := &in.Endpoints[i]
		if len(e.Addresses) == 0 {
			continue
		}
		// More than one address of an endpoint has no defined meaning; the
		// API's documentation says to use the first.
		ip, ok := parseAddr(e.Addresses[0])
		if !ok || FamilyOf(ip) != out.family || !canBeReached(ip) || ip.IsLinkLocalUnicast() {
			if unusable++; unusable == 1 {
				first = i
			}
			continue
		}
		out.endpoints = append(out.endpoints, s.endpoint(out, ip, e))
	}
	if unusable > 0 {
		s.problems = append(s.problems, Problem{
			Object: "EndpointSlice " + in.Namespace + "/" + in.Name,
			Field:  fmt.Sprintf("endpoints[%d].addresses[0]", first),
			Reason: fmt.Sprintf("not an %s address that packets can be sent to: %s (%d such endpoints are ignored)", out.family, in.Endpoints[first].Addresses[0], unusable),
		})
	}
	s.mergeDuplicates(out)
	return out
}

// sameName says whether two ports go by the same name, so that no Service could
// tell them apart.
func (p slicePort) sameName(q slicePort) bool { return p.name == q.name && p.protocol == q.protocol }

// mergeDuplicates merges endpoints of a slice that have the same address.
func (s *State) mergeDuplicates(sl *slice) {
	if len(sl.endpoints) <= 16 && !anyTwice(sl.endpoints) {
		return // as most slices, and cheaper to find out than with a map
	}
	at := make(map[ipBytes]int, len(sl.endpoints))
	out := sl.endpoints[:0]
	for _, e := range sl.endpoints {
		if i, seen := at[e.ip]; seen {
			have := &out[i]
			have.zones = sl.zones.union(have.zones, e.zones)
			have.cond = have.cond.merge(e.cond)&^(zoneHint|hintsHere) | s.zoneCondition(sl.zones.names(have.zones))
			continue
		}
		at[e.ip] = len(out)
		out = append(out, e)
	}
	sl.endpoints = out
}

// anyTwice says whether some address is there twice. It is for few endpoints.
func anyTwice(all []sliceEndpoint) bool {
	for i := range all {
		for j := range i {
			if all[i].ip == all[j].ip {
				return true
			}
		}
	}
	return false
}

// endpoint is what is kept of an endpoint of a slice.
func (s *State) endpoint(sl *slice, ip netip.Addr, e *discoveryv1.Endpoint) sliceEndpoint {
	out := sliceEndpoint{ip: ip.As16(), cond: s.conditionOf(e)}
	if e.Hints != nil && len(e.Hints.ForZones) > 0 {
		names := zoneNames(e.Hints.ForZones)
		out.zones = sl.zones.of(names)
		out.cond |= s.zoneCondition(names)
	}
	return out
}

// conditionOf reads an endpoint's conditions, except for zones; those that are
// not set have the API's defaults: ready, serving, not terminating.
func (s *State) conditionOf(e *discoveryv1.Endpoint) (c condition) {
	if e.Conditions.Ready == nil || *e.Conditions.Ready {
		c |= ready
	}
	if e.Conditions.Serving == nil || *e.Conditions.Serving {
		c |= serving
	}
	if e.Conditions.Terminating != nil && *e.Conditions.Terminating {
		c |= terminating
	}
	switch {
	case e.NodeName == nil || *e.NodeName == "":
		c |= maybeLocal
	case *e.NodeName == s.config.NodeName:
		c |= local | maybeLocal
	}
	if e.Hints != nil && len(e.Hints.ForNodes) > 0 {
		c |= nodeHint
		if slices.ContainsFunc(e.Hints.ForNodes, func(n discoveryv1.ForNode) bool { return n.Name == s.config.NodeName }) {
			c |= hintsNode
		}
	}
	return c
}

// merge is the condition of an endpoint that is in several slices: the best
// that any of them says, so that the order in which they came is no matter.
func (c condition) merge(d condition) condition {
	const best = ^terminating
	return (c|d)&best | c&d&terminating
}

// difference calls gone and come for the endpoints in which two versions of a
// slice differ. Endpoints that are the same at the start and at the end of both
// are passed over without a look-up.
func difference(from, to []sliceEndpoint, gone, come func(sliceEndpoint)) {
	for len(from) > 0 && len(to) > 0 && from[0] == to[0] {
		from, to = from[1:], to[1:]
	}
	for len(from) > 0 && len(to) > 0 && from[len(from)-1] == to[len(to)-1] {
		from, to = from[:len(from)-1], to[:len(to)-1]
	}
	const few = 8
	if len(from) <= few && len(to) <= few {
		for _, e := range from {
			if !slices.Contains(to, e) {
				gone(e)
			}
		}
		for _, e := range to {
			if !slices.Contains(from, e) {
				come(e)
			}
		}
		return
	}
	left := make(map[sliceEndpoint]struct{}, len(from))
	for _, e := range from {
		left[e] = struct{}{}
	}
	for _, e := range to {
		if _, both := left[e]; !both {
			come(e)
		}
	}
	for _, e := range to {
		delete(left, e)
	}
	for e := range left {
		gone(e)
	}
}
