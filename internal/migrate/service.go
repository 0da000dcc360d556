// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/slipstream-proxy/slipstream/internal/collect"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/plain"
)

// service is a Service, with what Slipstream makes of it.
type service struct {
	*corev1.Service
	frontends []desired.Frontend // NodePorts have one for all addresses of a family
	contested []desired.Problem  // frontends that another Service has
}

// servicesOf returns the Services that a proxy serves, by name.
func servicesOf(c *Config, objects []*corev1.Service) (all []*service) {
	state, byName := desired.New(desired.Config{NoExternalIPs: !c.AllowExternalIPs()}), map[types.NamespacedName]*service{}
	for _, s := range objects {
		state.SetService(s)
		byName[types.NamespacedName{Namespace: s.Namespace, Name: s.Name}] = &service{Service: s}
	}
	full := state.Full()
	for _, f := range full.Frontends {
		s := byName[types.NamespacedName{Namespace: f.New.Service.Namespace, Name: f.New.Service.Name}]
		s.frontends = append(s.frontends, *f.New)
	}
	for _, p := range full.Problems {
		if p.Contested {
			s := byName[p.Service]
			s.contested = append(s.contested, p)
		}
	}
	for _, s := range byName {
		slices.SortFunc(s.frontends, func(a, b desired.Frontend) int {
			return cmp.Or(a.AddrPort.Compare(b.AddrPort), cmp.Compare(a.Protocol, b.Protocol))
		})
		if len(s.frontends)+len(s.contested) > 0 {
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b *service) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return all
}

// of returns the frontends of some kinds.
func (s *service) of(kinds ...desired.AddressKind) (all []desired.Frontend) {
	for _, f := range s.frontends {
		if slices.Contains(kinds, f.Kind) {
			all = append(all, f)
		}
	}
	return all
}

// addresses returns the addresses of some kinds.
func (s *service) addresses(kinds ...desired.AddressKind) []netip.Addr {
	return slices.Compact(collect.From(s.of(kinds...), func(f desired.Frontend) netip.Addr { return f.Addr() }))
}

// has reports whether a Service has addresses of a family.
func (s *service) has(f desired.Family) bool {
	return slices.ContainsFunc(s.frontends, func(at desired.Frontend) bool { return desired.FamilyOf(at.Addr()) == f })
}

// uses reports whether one of the frontends has a protocol.
func uses(all []desired.Frontend, p desired.Protocol) bool {
	return slices.ContainsFunc(all, func(f desired.Frontend) bool { return f.Protocol == p })
}

// notOnNode returns the addresses that no interface of the node has, except kube-ipvs0.
func (m *comparison) notOnNode(all []netip.Addr) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(all), func(ip netip.Addr) bool { return slices.Contains(m.Addresses, ip) })
}

// service adds the findings of one Service.
func (m *comparison) service(s *service) {
	balancers, external := s.addresses(desired.LoadBalancerIP), s.addresses(desired.LoadBalancerIP, desired.ExternalIP)
	nodePorts, fromIPVS := s.of(desired.NodePort), m.from.VirtualServers
	for _, f := range []desired.Family{desired.IPv4, desired.IPv6} {
		if m.family[f] != "" && s.has(f) {
			m.add(Stops, "kernel", fmt.Sprintf("Its %s addresses are not served.", f), "")
		}
	}
	for _, p := range s.contested {
		m.add(Differs, "contested", "With Slipstream, "+p.Reason+". With kube-proxy, the one of both that is programmed last has it.", "Remove it from one of them.")
	}
	m.affinity(s)
	if fromIPVS && len(external)+len(nodePorts) > 0 && s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		m.add(Differs, "external-local", "externalTrafficPolicy Local: connections from the node and from its pods reach all endpoints, not only those of this node. While this node has no endpoint, connections from outside are dropped; kube-proxy sends them to other nodes.", "")
	}
	if p := s.Spec.InternalTrafficPolicy; fromIPVS && p != nil && *p == corev1.ServiceInternalTrafficPolicyLocal {
		m.add(Differs, "internal-local", "internalTrafficPolicy Local: while this node has no endpoint, connections are dropped. kube-proxy sends them to other nodes.", "")
	}
	if len(s.Spec.LoadBalancerSourceRanges) > 0 && len(balancers) > 0 && m.from.FormerIPTables {
		m.add(Differs, "source-ranges", "loadBalancerSourceRanges: while the Service has no endpoint, connections from other sources are dropped, not refused.", "")
	}
	if m.from.FormerIPTables && !m.from.VirtualServers && len(external) > 0 {
		m.add(Differs, "external-unserved", "While the Service has no endpoint, connections from the node to "+plain.List(external, ", ")+" are refused. kube-proxy lets them be routed.", "")
	}
	if n := s.Spec.HealthCheckNodePort; n != 0 && m.from.FormerIPTables && !m.into.IPTables {
		m.add(Action, "health-check", fmt.Sprintf("kube-proxy's rule that accepts connections to healthCheckNodePort %d is removed.", n), "If the chain INPUT has the policy DROP, accept them there.")
	}
	m.ownAddresses(s)
	m.loopback(s)
	// kube-proxy's IPVS mode ends both, too.
	if !fromIPVS && uses(s.frontends, desired.SCTP) {
		m.add(Differs, "sctp", "SCTP associations end when their endpoint is removed from the Service. With kube-proxy, they stay.", "")
	}
	if !fromIPVS && uses(nodePorts, desired.UDP) {
		m.add(Differs, "udp-nodeport", "UDP flows to the NodePort end when the last endpoint is removed. With kube-proxy, they stay with it.", "")
	}
}

// affinity compares session affinity.
func (m *comparison) affinity(s *service) {
	if s.Spec.SessionAffinity != corev1.ServiceAffinityClientIP || m.from.VirtualServers && m.into.VirtualServers {
		return
	}
	text := "sessionAffinity ClientIP: clients can reach another endpoint once, when Slipstream takes kube-proxy's place."
	switch {
	case m.into.VirtualServers:
		text += " Then a client stays with an endpoint for each address and port on its own, and as long as it has connections."
	case m.from.VirtualServers:
		text += " Then a client stays with an endpoint for all addresses of the Service together, and until the timeout after its last new connection."
	}
	if m.into.IPTables && m.From != m.to {
		text += " The kernel remembers the last 100 clients of each endpoint."
	}
	m.add(Differs, "affinity", text, "")
}

// ownAddresses compares the addresses that become the node's own, or stop being that.
func (m *comparison) ownAddresses(s *service) {
	balancers, external := m.notOnNode(s.addresses(desired.LoadBalancerIP)), m.notOnNode(s.addresses(desired.ExternalIP))
	switch {
	case m.from.VirtualServers:
		leaving := external
		if !m.into.VirtualServers {
			leaving = slices.Concat(balancers, external)
		}
		if len(leaving) > 0 {
			m.add(Action, "addresses", "The node no longer has "+plain.List(leaving, ", ")+": it stops answering ARP requests for it, and only the Service's ports are served. Other ports reach the machine that has the address.",
				"Check that routes, or a load balancer such as MetalLB, lead packets to the node without ARP answers of the kernel.")
		}
		if m.into.VirtualServers && len(external) > 0 {
			m.add(Differs, "scheduler", fmt.Sprintf("Endpoints for connections to %s are chosen at random, not by an IPVS scheduler, as no interface of the node has the address.", plain.List(external, ", ")),
				"If routers send it to the node (BGP), put it on an interface, such as lo.")
		}
	case m.into.VirtualServers && len(balancers) > 0:
		m.add(Differs, "addresses", "The node takes "+plain.List(balancers, ", ")+" for its own: it refuses other ports there. The configuration sets ipvs.strictARP, so that it does not answer ARP requests for it.", "")
	}
	if m.from.VirtualServers == m.into.VirtualServers {
		return
	}
	for _, l := range m.Listeners {
		if own := slices.Concat(s.addresses(desired.ClusterIP), balancers, external); slices.Contains(own, l.Addr()) {
			m.add(Action, "listener", fmt.Sprintf("A program of the node listens on %s, an address of the Service.", l), "Let it listen on an address of the node.")
		}
	}
}

// loopback compares NodePorts on loopback addresses.
func (m *comparison) loopback(s *service) {
	for _, f := range s.of(desired.NodePort) {
		address, is4 := netip.IPv6Loopback(), f.Addr().Is4()
		if !m.onLoopback(is4) {
			continue
		}
		if is4 {
			address = netip.AddrFrom4([4]byte{127, 0, 0, 1})
		}
		at := f.At(address).String()
		relayed := m.into.RelaysLocalhost && (is4 && m.keepsLoopback(m.to) || m.from.RelaysLocalhost)
		switch {
		case m.from.RelaysLocalhost && m.into.RelaysLocalhost:
			if f.Protocol == desired.UDP {
				m.add(Differs, "localhost", at+" begins to answer. kube-proxy refuses it.", "")
			}
		case m.into.KernelLocalhost && is4:
			// Both serve it.
		case relayed && f.Protocol == desired.SCTP:
			m.add(Stops, "localhost", at+" is refused: nftables mode serves TCP and UDP only.", "Use another address of the node.")
		case relayed:
			m.add(Differs, "localhost", at+" is served by the process, not by the kernel, while it runs. The configuration turns it on (feature gate "+gate+").", "")
		case m.into.RelaysLocalhost:
			m.add(Stops, "localhost", at+" is not served.", "If a program needs it, enable the feature gate "+gate+" and add 127.0.0.0/8 to nodePortAddresses, beside 0.0.0.0/0 for the other addresses.")
		default:
			m.add(Stops, "localhost", at+" is not served.", "Use another address of the node, or nftables mode.")
		}
	}
}
