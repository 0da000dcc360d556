// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// node is what is known of this node.
type node struct {
	zone     string
	ips      [families]netip.Addr   // the first of each family that the Node object has
	podCIDRs [families]netip.Prefix // as the Node object has them
	addrs    []netip.Addr           // on its interfaces
}

// SetNode takes a Node that is new or has changed. Only the one that this State
// is for matters. Addresses and ranges that a Node has had stay when a later
// version has none: what is programmed rests on them.
func (s *State) SetNode(in *corev1.Node) {
	if in.Name != s.config.NodeName {
		return
	}
	if zone := in.Labels[corev1.LabelTopologyZone]; zone != s.node.zone {
		s.node.zone = zone
		s.rezone()
	}
	former := s.node.ips
	var seen [families]bool
	for _, kind := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP} {
		for _, a := range in.Status.Addresses {
			ip, ok := parseAddr(a.Address)
			if f := FamilyOf(ip); a.Type == kind && ok && !seen[f] {
				s.node.ips[f], seen[f] = ip, true
			}
		}
	}
	s.node.setIP(s.config.NodeIP)
	if s.node.ips != former {
		s.selectNodePortAddrs()
		s.allowAgain()
	}
	for _, text := range in.Spec.PodCIDRs {
		if p, ok := parsePrefix(text); ok {
			s.node.podCIDRs[FamilyOf(p.Addr())] = p
		}
	}
}

// setIP sets the node's address of a family, if it is valid.
func (n *node) setIP(ip netip.Addr) {
	if ip.IsValid() {
		n.ips[FamilyOf(ip)] = ip.Unmap()
	}
}

// DeleteNode takes note that a Node is gone. What its own node has programmed
// goes on as it was.
func (s *State) DeleteNode(string) {}

// SetNodeAddresses takes the addresses on this node's interfaces, all of them.
func (s *State) SetNodeAddresses(addrs []netip.Addr) {
	s.node.addrs = slices.Clone(addrs)
	s.selectNodePortAddrs()
}

// local is how traffic of this node's pods is recognized now.
func (s *State) local() (l LocalTraffic) {
	switch d := s.config.DetectLocal; d.Mode {
	case ByClusterCIDR:
		for _, p := range d.CIDRs {
			if p = unmap(p); p.IsValid() {
				l.CIDRs[FamilyOf(p.Addr())] = p
			}
		}
	case ByNodeCIDR:
		l.CIDRs = s.node.podCIDRs
	case ByBridgeInterface:
		l.Iface = d.Interface
	case ByInterfaceNamePrefix:
		l.Iface, l.IsPrefix = d.Interface, true
	}
	return l
}

// selectNodePortAddrs finds the addresses on which NodePorts answer, and claims
// what follows for all Services that have NodePorts.
func (s *State) selectNodePortAddrs() {
	from := s.nodePortAddrs
	s.nodePortAddrs = s.config.NodePorts.of(&s.node)
	gone, come := without(from, s.nodePortAddrs), without(s.nodePortAddrs, from)
	if len(gone)+len(come) == 0 {
		return
	}
	for svc := range s.nodePortServices {
		for _, p := range svc.ports {
			if p.nodePort == 0 {
				continue
			}
			for _, ip := range gone {
				if svc.spec.has(FamilyOf(ip)) {
					s.unclaim(frontendKey(ip, p.nodePort, p), NodePort, p)
				}
			}
			for _, ip := range come {
				if svc.spec.has(FamilyOf(ip)) {
					s.claim(frontendKey(ip, p.nodePort, p), NodePort, p)
				}
			}
		}
	}
}

// without are the addresses of a that are not in b.
func without(a, b []netip.Addr) (out []netip.Addr) {
	for _, ip := range a {
		if !slices.Contains(b, ip) {
			out = append(out, ip)
		}
	}
	return out
}

// of are the addresses that are selected, each once.
func (n NodePortAddresses) of(node *node) (out []netip.Addr) {
	add := func(ip netip.Addr) {
		ip = ip.Unmap().WithZone("")
		if !slices.Contains(out, ip) && !ip.IsUnspecified() && !ip.IsMulticast() && (!ip.IsLoopback() || n.Loopback && ip.Is4()) {
			out = append(out, ip)
		}
	}
	if n.Primary {
		for _, ip := range node.ips {
			if ip.IsValid() {
				add(ip)
			}
		}
		return out
	}
	for _, ip := range node.addrs {
		if n.selects(ip.Unmap().WithZone("")) {
			add(ip)
		}
	}
	return out
}

// NodePortAddresses are the addresses on which NodePorts answer, for others that
// are to answer there too. An unspecified address stands for all of its family,
// where all are selected.
func (s *State) NodePortAddresses() (out []netip.Addr) {
	n := s.config.NodePorts
	if n.Primary {
		return slices.Clone(s.nodePortAddrs)
	}
	for _, all := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		if s.config.Without[FamilyOf(all)] {
			continue
		}
		narrowed := slices.ContainsFunc(n.CIDRs, func(p netip.Prefix) bool {
			return FamilyOf(p.Addr()) == FamilyOf(all)
		})
		if !narrowed || slices.Contains(n.CIDRs, netip.PrefixFrom(all, 0)) {
			out = append(out, all)
			continue
		}
		for _, ip := range s.nodePortAddrs {
			if FamilyOf(ip) == FamilyOf(all) {
				out = append(out, ip)
			}
		}
	}
	return out
}

// selects says whether the ranges select an address.
func (n NodePortAddresses) selects(ip netip.Addr) bool {
	any := true
	for _, p := range n.CIDRs {
		if FamilyOf(p.Addr()) == FamilyOf(ip) {
			if p.Contains(ip) {
				return true
			}
			any = false
		}
	}
	return any
}

// allowAgain derives the Services' source ranges again, for other addresses of
// the Node.
func (s *State) allowAgain() {
	for svc := range s.restricted {
		former := svc.spec.sources
		s.allow(svc.spec, former)
		if svc.spec.sources != former {
			s.eachClaim(svc.spec, svc.ports, func(key FrontendKey, _ AddressKind, _ *port) {
				s.dirtyFrontend(s.frontends[key])
			})
		}
	}
}
