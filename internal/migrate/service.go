// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/slipstream-proxy/slipstream/internal/config"
	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// parsed returns the addresses that are valid.
func parsed(texts []string) (all []netip.Addr) {
	for _, text := range texts {
		if ip, ok := config.ParseAddr(text); ok {
			all = append(all, ip)
		}
	}
	return all
}

func clusterIPs(s *corev1.Service) []netip.Addr {
	if len(s.Spec.ClusterIPs) > 0 {
		return parsed(s.Spec.ClusterIPs)
	}
	return parsed([]string{s.Spec.ClusterIP})
}

// ingress returns the addresses of load balancers that proxies serve.
func ingress(s *corev1.Service) []netip.Addr {
	var all []string
	for _, i := range s.Status.LoadBalancer.Ingress {
		if i.IPMode == nil || *i.IPMode == corev1.LoadBalancerIPModeVIP {
			all = append(all, i.IP)
		}
	}
	return parsed(all)
}

// has reports whether a Service has a ClusterIP of a family.
func has(s *corev1.Service, f desired.Family) bool {
	return slices.ContainsFunc(clusterIPs(s), func(ip netip.Addr) bool { return desired.FamilyOf(ip) == f })
}

// nodePortsOf returns the ports with a NodePort.
func nodePortsOf(s *corev1.Service) (all []corev1.ServicePort) {
	for _, p := range s.Spec.Ports {
		if p.NodePort != 0 {
			all = append(all, p)
		}
	}
	return all
}

// hasProtocol reports whether a port has a protocol.
func hasProtocol(ports []corev1.ServicePort, protocol corev1.Protocol) bool {
	return slices.ContainsFunc(ports, func(p corev1.ServicePort) bool { return p.Protocol == protocol })
}

// join lists values for a text.
func join[T fmt.Stringer](all []T) string {
	var texts []string
	for _, v := range all {
		texts = append(texts, v.String())
	}
	return strings.Join(texts, ", ")
}

// notOnNode returns the addresses that no interface of the node has, except kube-ipvs0.
func (m *comparison) notOnNode(all []netip.Addr) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(all), func(ip netip.Addr) bool { return slices.Contains(m.Addresses, ip) })
}

// service adds the findings of one Service.
func (m *comparison) service(s *corev1.Service) {
	external := slices.Concat(ingress(s), m.externalIPs(s))
	reachable := len(external) > 0 || len(nodePortsOf(s)) > 0
	fromIPVS := m.From == config.IPVS
	for _, f := range []desired.Family{desired.IPv4, desired.IPv6} {
		if m.family[f] != "" && has(s, f) {
			m.add(Stops, "kernel", fmt.Sprintf("Its %s addresses are not served.", f), "")
		}
	}
	m.contested(s)
	m.affinity(s)
	if fromIPVS && reachable && s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		m.add(Differs, "external-local", "externalTrafficPolicy Local: connections from the node and from its pods reach all endpoints, not only those of this node. While this node has no endpoint, connections from outside are dropped; kube-proxy sends them to other nodes.", "")
	}
	if p := s.Spec.InternalTrafficPolicy; fromIPVS && p != nil && *p == corev1.ServiceInternalTrafficPolicyLocal {
		m.add(Differs, "internal-local", "internalTrafficPolicy Local: while this node has no endpoint, connections are dropped. kube-proxy sends them to other nodes.", "")
	}
	if len(s.Spec.LoadBalancerSourceRanges) > 0 && len(ingress(s)) > 0 && m.From != config.NFTables {
		m.add(Differs, "source-ranges", "loadBalancerSourceRanges: while the Service has no endpoint, connections from other sources are dropped, not refused.", "")
	}
	if m.From == config.IPTables && len(external) > 0 {
		m.add(Differs, "external-unserved", "While the Service has no endpoint, connections from the node to "+join(external)+" are refused. kube-proxy lets them be routed.", "")
	}
	if n := s.Spec.HealthCheckNodePort; n != 0 && m.From != config.NFTables && m.to != config.IPTables {
		m.add(Action, "health-check", fmt.Sprintf("kube-proxy's rule that accepts connections to healthCheckNodePort %d is removed.", n), "If the chain INPUT has the policy DROP, accept them there.")
	}
	m.ownAddresses(s)
	m.loopback(s)
	if hasProtocol(s.Spec.Ports, corev1.ProtocolSCTP) {
		m.add(Differs, "sctp", "SCTP associations end when their endpoint is removed from the Service. With kube-proxy, they stay.", "")
	}
	if hasProtocol(nodePortsOf(s), corev1.ProtocolUDP) {
		m.add(Differs, "udp-nodeport", "UDP flows to the NodePort end when the last endpoint is removed. With kube-proxy, they stay with it.", "")
	}
}

func (m *comparison) externalIPs(s *corev1.Service) []netip.Addr {
	if !m.AllowExternalIPs() {
		return nil
	}
	return parsed(s.Spec.ExternalIPs)
}

// frontends returns the addresses and ports of a Service, except NodePorts.
func (m *comparison) frontends(s *corev1.Service) (all []string) {
	for _, ip := range slices.Concat(clusterIPs(s), ingress(s), m.externalIPs(s)) {
		for _, p := range s.Spec.Ports {
			all = append(all, fmt.Sprintf("%s/%s", netip.AddrPortFrom(ip, uint16(p.Port)), p.Protocol))
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// contested compares which Service gets an address and port that several have.
func (m *comparison) contested(s *corev1.Service) {
	for _, at := range m.frontends(s) {
		if m.claims[at] > 1 {
			m.add(Differs, "contested", "Another Service has "+at+" too. With kube-proxy, the Service gets the connections that is programmed last. With Slipstream, a ClusterIP goes before the address of a load balancer, and that before an external IP; then the oldest Service gets them.", "Remove it from one of them.")
		}
	}
}

// affinity compares session affinity.
func (m *comparison) affinity(s *corev1.Service) {
	if s.Spec.SessionAffinity != corev1.ServiceAffinityClientIP || m.From == config.IPVS && m.to == config.IPVS {
		return
	}
	text := "sessionAffinity ClientIP: clients can reach another endpoint once, when Slipstream takes kube-proxy's place."
	switch {
	case m.to == config.IPVS:
		text += " Then a client stays with an endpoint for each address and port on its own, and as long as it has connections."
	case m.From == config.IPVS:
		text += " Then a client stays with an endpoint for all addresses of the Service together, and until the timeout after its last new connection."
	}
	if m.to == config.IPTables && m.From != m.to {
		text += " The kernel remembers the last 100 clients of each endpoint."
	}
	m.add(Differs, "affinity", text, "")
}

// ownAddresses compares the addresses that become the node's own, or stop being that.
func (m *comparison) ownAddresses(s *corev1.Service) {
	balancers, external := m.notOnNode(ingress(s)), m.notOnNode(m.externalIPs(s))
	switch {
	case m.From == config.IPVS:
		leaving := external
		if m.to != config.IPVS {
			leaving = slices.Concat(balancers, external)
		}
		if len(leaving) > 0 {
			m.add(Action, "addresses", "The node no longer has "+join(leaving)+": it stops answering ARP requests for it, and only the Service's ports are served. Other ports reach the machine that has the address.",
				"Check that routes, or a load balancer such as MetalLB, lead packets to the node without ARP answers of the kernel.")
		}
	case m.to == config.IPVS && len(balancers) > 0:
		m.add(Differs, "addresses", "The node takes "+join(balancers)+" for its own: it refuses other ports there. The configuration sets ipvs.strictARP, so that it does not answer ARP requests for it.", "")
	}
	if (m.From == config.IPVS) == (m.to == config.IPVS) {
		return
	}
	for _, l := range m.Listeners {
		if own := slices.Concat(clusterIPs(s), balancers, external); slices.Contains(own, l.Addr()) {
			m.add(Action, "listener", fmt.Sprintf("A program of the node listens on %s, an address of the Service.", l), "Let it listen on an address of the node.")
		}
	}
}

// loopback compares NodePorts on loopback addresses.
func (m *comparison) loopback(s *corev1.Service) {
	for _, f := range []desired.Family{desired.IPv4, desired.IPv6} {
		is4 := f == desired.IPv4
		if !has(s, f) || !m.onLoopback(is4) {
			continue
		}
		address := netip.IPv6Loopback()
		if is4 {
			address = netip.AddrFrom4([4]byte{127, 0, 0, 1})
		}
		for _, p := range nodePortsOf(s) {
			at := fmt.Sprintf("%s/%s", netip.AddrPortFrom(address, uint16(p.NodePort)), p.Protocol)
			relayed := m.to == config.NFTables && (is4 && m.keepsLoopback(m.to) || m.From == config.NFTables)
			switch {
			case m.From == m.to && m.to == config.NFTables:
				if p.Protocol == corev1.ProtocolUDP {
					m.add(Differs, "localhost", at+" begins to answer. kube-proxy refuses it.", "")
				}
			case m.to == config.IPTables && is4:
				// Both serve it.
			case relayed && p.Protocol == corev1.ProtocolSCTP:
				m.add(Stops, "localhost", at+" is refused: nftables mode serves TCP and UDP only.", "Use another address of the node.")
			case relayed:
				m.add(Differs, "localhost", at+" is served by the process, not by the kernel, while it runs. The configuration turns it on (feature gate "+gate+").", "")
			case m.to == config.NFTables:
				m.add(Stops, "localhost", at+" is not served.", "If a program needs it, enable the feature gate "+gate+" and add 127.0.0.0/8 to nodePortAddresses, beside 0.0.0.0/0 for the other addresses.")
			default:
				m.add(Stops, "localhost", at+" is not served.", "Use another address of the node, or nftables mode.")
			}
		}
	}
}
