// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// slice is the part of an EndpointSlice that the proxy uses.
type slice struct {
	service   types.NamespacedName
	family    Family
	weight    uint8
	ports     []slicePort // in order
	endpoints []sliceEndpoint
	zones     zoneSets // of the endpoints
}

// same reports whether two versions of a slice are equivalent. Either may be nil.
func (sl *slice) same(o *slice) bool {
	if sl == nil || o == nil {
		return sl == o
	}
	return sl.service == o.service && sl.family == o.family && sl.weight == o.weight && slices.Equal(sl.ports, o.ports) &&
		slices.Equal(sl.endpoints, o.endpoints) && slices.EqualFunc(sl.zones, o.zones, zones.equal)
}

// slicePort is a port of all endpoints of the slice. Service ports refer to it by name and protocol.
type slicePort struct {
	name     string
	protocol Protocol
	number   uint16
}

type sliceEndpoint struct {
	ip    ipBytes
	cond  condition
	zones zoneSet // its zone and those in its hints
}

// compactSlice extracts the slice. It returns nil for an EndpointSlice that is ignored.
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
	out.weight = s.weightOf(in)
	for i := range in.Ports {
		p := &in.Ports[i]
		protocol, number := protocols[ptr.Deref(p.Protocol, "")], ptr.Deref(p.Port, 0)
		if protocol != 0 && number > 0 && number < 1<<16 {
			out.ports = append(out.ports, slicePort{ptr.Deref(p.Name, ""), protocol, uint16(number)})
		}
	}
	slices.SortStableFunc(out.ports, slicePort.compare)
	out.ports = slices.CompactFunc(out.ports, func(a, b slicePort) bool { return a.compare(b) == 0 })
	var unusable, first int // number, and index of the first one
	if former := s.slices[types.NamespacedName{Namespace: in.Namespace, Name: in.Name}]; former == nil {
		out.zones = slices.Clip(s.zones)
	} else if len(former.zones) <= few {
		out.zones = slices.Clip(former.zones) // so that the zones of endpoints keep their numbers
	}
	zones := map[string]zoneSet{}
	out.endpoints = make([]sliceEndpoint, 0, len(in.Endpoints))
	for i := range in.Endpoints {
		e := &in.Endpoints[i]
		if len(e.Addresses) == 0 {
			continue
		}
		// The API's documentation says to use the first address only.
		ip, ok := parseAddr(e.Addresses[0])
		if !ok || FamilyOf(ip) != out.family || !canBeReached(ip) || ip.IsLinkLocalUnicast() {
			if unusable++; unusable == 1 {
				first = i
			}
			continue
		}
		out.endpoints = append(out.endpoints, s.endpoint(out, zones, ip, e))
	}
	if len(out.zones) > len(s.zones) && len(out.zones) <= few/2 {
		s.zones = out.zones
	}
	if unusable > 0 {
		s.addProblem(Problem{
			Object: "EndpointSlice " + in.Namespace + "/" + in.Name,
			Field:  fmt.Sprintf("endpoints[%d].addresses[0]", first),
			Reason: fmt.Sprintf("not an %s address that packets can be sent to (%d such endpoints are ignored): %s", out.family, unusable, in.Endpoints[first].Addresses[0]),
		})
	}
	return out
}

// compare orders ports by what Service ports distinguish them by: name and protocol.
func (p slicePort) compare(q slicePort) int {
	return cmp.Or(cmp.Compare(p.name, q.name), cmp.Compare(p.protocol, q.protocol))
}

func (s *State) endpoint(sl *slice, zones map[string]zoneSet, ip netip.Addr, e *discoveryv1.Endpoint) sliceEndpoint {
	out := sliceEndpoint{ip: ip.As16(), cond: s.conditionOf(e)}
	out.zones = sl.zones.of(e, zones)
	out.cond |= s.zoneCondition(sl.zones.get(out.zones))
	return out
}

// conditionOf returns an endpoint's condition, without what depends on zones. Unset
// conditions have the API's defaults: ready, serving, not terminating.
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
			c |= nodeMatches
		}
	}
	return c
}

// difference returns the endpoints that only one of two versions of a slice has. An endpoint that a version lists
// twice counts twice.
func difference(from, to []sliceEndpoint) (removed, added []sliceEndpoint) {
	for len(from) > 0 && len(to) > 0 && from[0] == to[0] {
		from, to = from[1:], to[1:]
	}
	for len(from) > 0 && len(to) > 0 && from[len(from)-1] == to[len(to)-1] {
		from, to = from[:len(from)-1], to[:len(to)-1]
	}
	if len(from)*len(to) > 1 {
		return onlyIn(from, to), onlyIn(to, from)
	}
	return from, to
}

// onlyIn returns the endpoints of a that are not in b.
func onlyIn(a, b []sliceEndpoint) (out []sliceEndpoint) {
	in := make(map[sliceEndpoint]int, len(b))
	for _, e := range b {
		in[e]++
	}
	for _, e := range a {
		if in[e]--; in[e] < 0 {
			out = append(out, e)
		}
	}
	return out
}
