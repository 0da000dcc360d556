// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

type node struct {
	zone     string
	primary  netip.Addr             // Config.NodeIP, or the first that the Node object has
	ips      [families]netip.Addr   // the first of each family that the Node object has
	podCIDRs [families]netip.Prefix // as the Node object has them
	addrs    []netip.Addr           // on its interfaces
	listed   []netip.Addr           // all that the Node object has
}

// SetNode adds or replaces a Node. Of other nodes than this one, only the addresses matter. Addresses and pod CIDRs are
// kept when a later version of the object lacks them, so that an incomplete object does not change the programmed
// content. SetNode reports whether the State may have changed, which is exact for other nodes.
func (s *State) SetNode(in *corev1.Node) (changed bool) {
	if in.Name != s.config.NodeName {
		addrs := addressesOf(in)
		if changed = len(addrs) > 0 && !slices.Equal(addrs, s.otherNodes[in.Name]); changed {
			s.setOtherNode(in.Name, addrs)
		}
		return changed
	}
	if zone := in.Labels[corev1.LabelTopologyZone]; zone != s.node.zone {
		s.node.zone = zone
		s.updateZones()
	}
	if all := addressesOf(in); len(all) > 0 {
		s.moveAddresses(s.node.listed, all)
		s.node.listed = all
	}
	former, primary := s.node.ips, s.config.NodeIP
	var seen [families]bool
	for _, kind := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP} {
		for _, a := range in.Status.Addresses {
			ip, ok := parseAddr(a.Address)
			if f := FamilyOf(ip); a.Type == kind && ok && !seen[f] {
				s.node.ips[f], seen[f] = ip, true
				if !primary.IsValid() {
					primary = ip
				}
			}
		}
	}
	if primary.IsValid() {
		s.node.primary = primary
	}
	s.node.setIP(s.config.NodeIP)
	if s.node.ips != former {
		s.selectNodePortAddrs()
		s.updateSources()
	}
	for _, text := range in.Spec.PodCIDRs {
		if p, ok := parsePrefix(text); ok {
			s.node.podCIDRs[FamilyOf(p.Addr())] = p
		}
	}
	return true
}

// LacksPrimary reports whether the node cannot serve the family of its primary address, which
// is [Config.NodeIP] or the first InternalIP of the Node object.
func (s *State) LacksPrimary() (f Family, lacks bool) {
	f = FamilyOf(s.node.primary)
	return f, s.node.primary.IsValid() && s.config.Without[f]
}

// setIP sets the node's address of a family, if it is valid.
func (n *node) setIP(ip netip.Addr) {
	if ip.IsValid() {
		n.ips[FamilyOf(ip)] = ip.Unmap()
	}
}

// DeleteNode deletes a Node. The last known version of this node's stays in effect.
func (s *State) DeleteNode(name string) { s.setOtherNode(name, nil) }

// setOtherNode sets the addresses of another Node.
func (s *State) setOtherNode(name string, addrs []netip.Addr) {
	former := s.otherNodes[name]
	if s.otherNodes[name] = addrs; len(addrs) == 0 {
		delete(s.otherNodes, name)
	}
	for _, a := range former {
		add(s.balancers.others, a, -1)
	}
	for _, a := range addrs {
		add(s.balancers.others, a, 1)
	}
	s.moveAddresses(former, addrs)
}

// addressesOf returns the addresses of a Node.
func addressesOf(in *corev1.Node) (all []netip.Addr) {
	for _, a := range in.Status.Addresses {
		if a.Type != corev1.NodeInternalIP && a.Type != corev1.NodeExternalIP {
			continue
		}
		if ip, ok := parseAddr(a.Address); ok {
			all = append(all, ip)
		}
	}
	return all
}

// SetNodeAddresses sets all addresses on this node's interfaces.
func (s *State) SetNodeAddresses(addrs []netip.Addr) {
	former := s.node.addrs
	for _, a := range former {
		s.useOwn(a, -1)
	}
	s.node.addrs = slices.Clone(addrs)
	for _, a := range addrs {
		s.useOwn(a, 1)
	}
	s.moveAddresses(former, addrs)
	s.selectNodePortAddrs()
}

// useOwn leaves out IPv6 link-local addresses: each interface has one, also those of pods.
func (s *State) useOwn(a netip.Addr, n int) {
	if a = a.Unmap().WithZone(""); !a.Is6() || !a.IsLinkLocalUnicast() {
		s.sets[OwnIPs].use(Address(a), n)
	}
}

func (s *State) local() (l LocalTraffic) {
	switch d := s.config.DetectLocal; d.Mode {
	case ByClusterCIDR:
		for _, p := range d.CIDRs {
			l.CIDRs[FamilyOf(p.Addr())] = p.Masked()
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

// selectNodePortAddrs selects the addresses that serve NodePorts. With
// Config.IPVS it updates the claims of all Services with NodePorts.
func (s *State) selectNodePortAddrs() {
	from := s.nodePortAddrs
	s.nodePortAddrs = slices.DeleteFunc(s.config.NodePorts.of(&s.node), func(ip netip.Addr) bool { return s.config.Without[FamilyOf(ip)] })
	removed, added := subtract(from, s.nodePortAddrs), subtract(s.nodePortAddrs, from)
	if len(removed)+len(added) == 0 {
		return
	}
	if !s.config.IPVS {
		s.eachNodePort(func(f *frontend) {
			for e := range s.beside(f, removed) {
				s.countPair(e, f, -1)
			}
			for e := range s.beside(f, added) {
				s.countPair(e, f, 1)
				winner, loser := rank(e, f)
				s.reportContest(e, e.key, winner, loser)
			}
		})
		for _, ip := range removed {
			s.sets[NodeAddresses].use(Address(ip), -1)
			s.touchRanges(ip)
		}
		for _, ip := range added {
			s.sets[NodeAddresses].use(Address(ip), 1)
			s.touchRanges(ip)
		}
		return
	}
	for _, svc := range s.services {
		for _, p := range svc.ports {
			svc.spec.eachNodePort(p, removed, s.unclaim)
			svc.spec.eachNodePort(p, added, s.claim)
		}
	}
}

// subtract returns the members of a that are not in b.
func subtract[T comparable](a, b []T) (out []T) {
	for _, v := range a {
		if !slices.Contains(b, v) {
			out = append(out, v)
		}
	}
	return out
}

// of returns the selected addresses, without duplicates. IPv6 link-local addresses are left out: each interface has
// one, also those of pods, and clients cannot use them without naming an interface.
func (n NodePortAddresses) of(node *node) (out []netip.Addr) {
	add := func(ip netip.Addr) {
		ip = ip.Unmap().WithZone("")
		unusable := ip.IsUnspecified() || ip.IsMulticast() || ip.Is6() && ip.IsLinkLocalUnicast() || ip.IsLoopback() && !(n.Loopback && ip.Is4())
		if !unusable && !slices.Contains(out, ip) {
			out = append(out, ip)
		}
	}
	if n.Primary {
		for _, ip := range node.ips {
			if ip.IsValid() {
				add(ip)
			}
		}
	}
	for _, ip := range node.addrs {
		if n.selects(ip.Unmap().WithZone("")) {
			add(ip)
		}
	}
	return out
}

// NodePortAddresses returns the addresses that serve NodePorts, for health check servers that listen on the same
// addresses. If all addresses of a family are selected, the unspecified address stands for them.
func (s *State) NodePortAddresses() (out []netip.Addr) {
	n := s.config.NodePorts
	for f, unspecified := range unspecified {
		switch {
		case s.config.Without[f]:
		case n.all(Family(f)):
			out = append(out, unspecified)
		default:
			for _, ip := range s.nodePortAddrs {
				if FamilyOf(ip) == Family(f) {
					out = append(out, ip)
				}
			}
			if s.config.LoopbackNodePorts[f] == LoopbackRelayed {
				out = append(out, loopbacks[f])
			}
		}
	}
	return out
}

func (n NodePortAddresses) all(f Family) bool {
	any := n.Primary
	for _, p := range n.CIDRs {
		if FamilyOf(p.Addr()) == f {
			if p.Bits() == 0 {
				return true
			}
			any = true
		}
	}
	return !any
}

// selects reports whether the ranges select an address.
func (n NodePortAddresses) selects(ip netip.Addr) bool {
	return n.all(FamilyOf(ip)) || slices.ContainsFunc(n.CIDRs, func(p netip.Prefix) bool { return p.Contains(ip) })
}

// updateSources derives the source ranges of all Services again after the Node's addresses changed.
func (s *State) updateSources() {
	for _, svc := range s.services {
		if svc.spec == nil {
			continue
		}
		former := svc.spec.sources
		s.deriveSources(svc.spec)
		if svc.spec.sources != former {
			s.dirtyClaims(svc)
		}
	}
}
