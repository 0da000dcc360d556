// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"
)

// The differences below are those of iptables mode, and the second and the fourth are also of
// IPVS mode. In all of them kube-proxy lets pass
// what Slipstream refuses or drops, as both do in nftables mode.

// isUnusedPort reports whether Slipstream refuses a packet to a port of a ClusterIP that its
// Service does not have, and kube-proxy accepts it.
func isUnusedPort(c *Cluster, d difference) bool {
	if !letPass(c, d, Refused) {
		return false
	}
	svc := ownerOf(c, d.probe.To.Addr())
	return svc != nil && !slices.ContainsFunc(svc.Spec.Ports, func(p corev1.ServicePort) bool {
		return uint16(p.Port) == d.probe.To.Port() && lab.Protocol(p.Protocol) == d.probe.Protocol
	})
}

// isUnusedClusterIP reports whether Slipstream drops a packet to an address of a ServiceCIDR
// that no known Service has, and kube-proxy accepts it.
func isUnusedClusterIP(c *Cluster, d difference) bool {
	of := func(a netip.Addr) bool {
		return ServiceCIDRs[familyOf(a)].Contains(a) && ownerOf(c, a) == nil
	}
	if d.probe.Kind == Share {
		// The Service is another proxy's: with kube-proxy all its addresses lead
		// elsewhere, where one machine answers, or this node does at an address of its own.
		return c.Settings.Mode != NFTables && (of(d.probe.To.Addr()) || of(d.probe.Then.Addr())) &&
			d.outcomes[0].Note != NotBoth && d.outcomes[1].Note == NotBoth
	}
	return of(d.probe.To.Addr()) && letPass(c, d, Timeout)
}

// isRefusedOnNode reports whether Slipstream refuses a connection from the node itself to an
// external or load balancer address of a Service without endpoints, and kube-proxy, which
// refuses it from elsewhere, accepts it.
func isRefusedOnNode(c *Cluster, d difference) bool {
	svc := unusable(c, d.probe)
	return d.probe.From == OnNode && svc != nil &&
		letPass(c, d, Refused) &&
		(slices.Contains(svc.Spec.ExternalIPs, d.probe.To.Addr().String()) || isBalanced(svc, d.probe.To.Addr()))
}

// isSourceFirst reports whether Slipstream drops a connection to a load balancer's address of a
// Service without endpoints from a client outside its source ranges, and kube-proxy refuses it,
// as from all clients, or accepts it, from the node.
func isSourceFirst(c *Cluster, d difference) bool {
	svc := unusable(c, d.probe)
	if svc == nil || len(svc.Spec.LoadBalancerSourceRanges) == 0 || !isBalanced(svc, d.probe.To.Addr()) {
		return false
	}
	kube, ours := d.outcomes[0], d.outcomes[1]
	refused := c.Settings.Mode != NFTables && fails(kube, Refused) && fails(ours, failureOf(d, Timeout))
	return refused || d.probe.From == OnNode && letPass(c, d, Timeout)
}

// unusable returns the Service of a probe's port, if it has no endpoints, or nil.
func unusable(c *Cluster, p Probe) *corev1.Service {
	svc := c.Named(p.Namespace, p.Service)
	if svc == nil {
		return nil
	}
	i := slices.IndexFunc(svc.Spec.Ports, func(port corev1.ServicePort) bool {
		return uint16(port.Port) == p.To.Port() && lab.Protocol(port.Protocol) == p.Protocol
	})
	if i < 0 || usable(c, svc, svc.Spec.Ports[i], familyOf(p.To.Addr())) {
		return nil
	}
	return svc
}

// usable says whether a Service's port has, in a family (0 or 1), an endpoint on any node that
// is ready, or terminating and still serves.
func usable(c *Cluster, svc *corev1.Service, port corev1.ServicePort, family int) bool {
	serves := func(e discoveryv1.Endpoint) bool {
		ready := ptr.Deref(e.Conditions.Ready, true)
		return ready || ptr.Deref(e.Conditions.Terminating, false) && ptr.Deref(e.Conditions.Serving, true)
	}
	for _, s := range c.SlicesOf(svc) {
		if _, headless := s.Labels[corev1.IsHeadlessService]; headless {
			continue
		}
		has := slices.ContainsFunc(s.Ports, func(p discoveryv1.EndpointPort) bool {
			return p.Port != nil && ptr.Deref(p.Name, "") == port.Name && ptr.Deref(p.Protocol, corev1.ProtocolTCP) == port.Protocol
		})
		if has && (s.AddressType == discoveryv1.AddressTypeIPv4) == (family == 0) && slices.ContainsFunc(s.Endpoints, serves) {
			return true
		}
	}
	return false
}

// proxied reports whether a proxy handles a Service at all.
func proxied(svc *corev1.Service) bool {
	_, another := svc.Labels["service.kubernetes.io/service-proxy-name"]
	return !another && svc.Spec.Type != corev1.ServiceTypeExternalName && svc.Spec.ClusterIP != corev1.ClusterIPNone
}

// isBalanced says whether a load balancer's address is a Service's.
func isBalanced(svc *corev1.Service, a netip.Addr) bool {
	return slices.ContainsFunc(svc.Status.LoadBalancer.Ingress, func(in corev1.LoadBalancerIngress) bool { return in.IP == a.String() })
}

// isWhereNoneAnswers reports whether kube-proxy refuses or drops a connection to the node port
// of a Service without endpoints, or without some on n1, at an address of n1 that does not
// serve node ports, and Slipstream does not handle it.
func isWhereNoneAnswers(c *Cluster, d difference) bool {
	svc := c.Named(d.probe.Namespace, d.probe.Service)
	if c.Settings.Mode != IPTables || svc == nil || c.Settings.HasNodePorts(d.probe.To.Addr()) {
		return false
	}
	i := slices.IndexFunc(svc.Spec.Ports, func(p corev1.ServicePort) bool {
		return uint16(p.NodePort) == d.probe.To.Port() && lab.Protocol(p.Protocol) == d.probe.Protocol
	})
	if i < 0 {
		return false
	}
	kube := ""
	switch {
	case !usable(c, svc, svc.Spec.Ports[i], familyOf(d.probe.To.Addr())):
		kube = Refused
	case svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal:
		kube = Timeout
	}
	ours := Refused // nothing listens there
	if c.Settings.Firewall && d.probe.From != OnNode {
		ours = Timeout
	}
	return fails(d.outcomes[0], kube) && fails(d.outcomes[1], ours)
}

// notPermitted is the result, on the node itself, of a datagram that a rule refuses or drops; a
// refusal may arrive first.
const notPermitted = "operation not permitted"

// failureOf is a failure as Slipstream's outcome of a probe has it.
func failureOf(d difference, failure string) string {
	switch ours := d.outcomes[1]; {
	case d.probe.From == OnNode && d.probe.Protocol == lab.UDP && fails(ours, notPermitted):
		return notPermitted
	case d.probe.Kind == Stick && failure == Timeout && fails(ours, OneOfThem):
		return OneOfThem // which a timeout may be; other vantages tell
	}
	return failure
}

// fails reports whether all connections failed in that way.
func fails(o Outcome, failure string) bool {
	return len(o.Answers) == 0 && slices.Equal(o.Failures, []string{failure})
}

// letPass reports whether, in iptables or IPVS mode, all connections reached another machine with
// kube-proxy, or would have without the firewall, and met nothing but the failure with
// Slipstream.
func letPass(c *Cluster, d difference, failure string) bool {
	kube, ours := d.outcomes[0], d.outcomes[1]
	if c.Settings.Mode == NFTables || !fails(ours, failureOf(d, failure)) {
		return false
	}
	if len(kube.Answers) == 0 {
		return c.Settings.Firewall && fails(kube, Timeout)
	}
	for _, servers := range kube.Answers {
		for _, s := range servers {
			if !strings.HasPrefix(s, Elsewhere+":") {
				return false
			}
		}
	}
	return len(kube.Failures) == 0
}

// ownerOf returns the Service with a ClusterIP, of those that a proxy serves.
func ownerOf(c *Cluster, a netip.Addr) *corev1.Service {
	i := slices.IndexFunc(c.Services, func(svc *corev1.Service) bool {
		return slices.Contains(svc.Spec.ClusterIPs, a.String()) && proxied(svc)
	})
	if i < 0 {
		return nil
	}
	return c.Services[i]
}

// TestKnownOfIPTablesIsNarrow checks that the rules of the known differences of iptables mode
// do not match similar ones.
func TestKnownOfIPTablesIsNarrow(t *testing.T) {
	const seed = 1
	full := RandomCluster(seed)
	full.ForIPTables("nft")
	full.Settings.Firewall = false
	svc := full.Services[slices.IndexFunc(full.Services, func(svc *corev1.Service) bool {
		return proxied(svc) && svc.Spec.ClusterIP != "" && len(full.SlicesOf(svc)) > 0
	})]
	svc.Spec.ExternalTrafficPolicy, svc.Spec.Ports[0].NodePort = corev1.ServiceExternalTrafficPolicyLocal, 30001
	full.Settings.NodePortAddresses = []string{"192.168.0.0/16"}
	svc.Spec.ExternalIPs = []string{"203.0.113.99"}
	svc.Spec.LoadBalancerSourceRanges = []string{"198.18.0.0/16"}
	svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.98"}}
	for _, s := range full.SlicesOf(svc) {
		s.AddressType, s.Endpoints[0].Conditions = "IPv4", discoveryv1.EndpointConditions{}
		s.Ports = []discoveryv1.EndpointPort{{Name: &svc.Spec.Ports[0].Name, Protocol: &svc.Spec.Ports[0].Protocol, Port: ptr.To[int32](8080)}}
	}
	c, walled, nft := full.DeepCopy(), full.DeepCopy(), full.DeepCopy()
	c.Slices, walled.Slices, nft.Slices = nil, nil, nil
	walled.Settings.Firewall = true
	nft.Settings.Mode, nft.Settings.Variant = NFTables, ""
	at := func(ip string, port uint16) Probe {
		return Probe{
			From: PodNoEndpoint, Namespace: svc.Namespace, Service: svc.Name,
			To: netip.AddrPortFrom(netip.MustParseAddr(ip), port), Protocol: lab.Protocol(svc.Spec.Ports[0].Protocol),
		}
	}
	port := uint16(svc.Spec.Ports[0].Port)
	unused, used := at(svc.Spec.ClusterIPs[0], 7), at(svc.Spec.ClusterIPs[0], port)
	unallocated := at(c.Unallocated(0).String(), port)
	external, balanced := at(svc.Spec.ExternalIPs[0], port), at(svc.Status.LoadBalancer.Ingress[0].IP, port)
	onNode, balancedOnNode := external, balanced
	onNode.From, balancedOnNode.From = OnNode, OnNode
	nodePort, answering := at(LocalVIP[0].String(), uint16(svc.Spec.Ports[0].NodePort)), at(NodeAddress(Node1)[0].String(), uint16(svc.Spec.Ports[0].NodePort))
	datagram, toUnallocated := at(svc.Spec.ClusterIPs[0], 7), unallocated
	datagram.Protocol, toUnallocated.Protocol = lab.UDP, lab.UDP
	fromPod := datagram
	datagram.From, toUnallocated.From = OnNode, OnNode
	notSent := Outcome{Failures: []string{notPermitted}}
	shared, sharedOwn := unallocated, used
	shared.Kind, shared.Then, sharedOwn.Kind, sharedOwn.Then = Share, external.To, Share, external.To
	same, notBoth := Outcome{Note: SameServer}, Outcome{Note: NotBoth}
	passes := Outcome{Answers: map[string][]string{"a": {"elsewhere:9"}}}
	reaches := Outcome{Answers: map[string][]string{"a": {"b:8080"}}}
	refused, timeout := Outcome{Failures: []string{Refused}}, Outcome{Failures: []string{Timeout}}
	for _, tc := range []struct {
		name       string
		cluster    *Cluster
		probe      Probe
		kube, ours Outcome
		known      bool
	}{
		{"unused port", c, unused, passes, refused, true},
		{"unused port, dropped", c, unused, passes, timeout, false},
		{"unused port, to some Service", c, unused, reaches, refused, false},
		{"unused port, the other way round", c, unused, refused, passes, false},
		{"unused port, kube-proxy drops", c, unused, timeout, refused, false},
		{"unused port, the firewall drops", walled, unused, timeout, refused, true},
		{"unused port, in nftables mode", nft, unused, passes, refused, false},
		{"used port", c, used, passes, refused, false},
		{"an unallocated address", c, unallocated, passes, timeout, true},
		{"an unallocated address, refused", c, unallocated, passes, refused, false},
		{"an unallocated address and another", c, shared, same, notBoth, true},
		{"an unallocated address and another, the other way round", c, shared, notBoth, same, false},
		{"an unallocated address and another, in nftables mode", nft, shared, same, notBoth, false},
		{"a Service's address and another", c, sharedOwn, same, notBoth, false},
		{"a Service's address, dropped", c, used, passes, timeout, false},
		{"external address, on the node", c, onNode, passes, refused, true},
		{"external address of a Service with endpoints, on the node", full, onNode, passes, refused, false},
		{"external address, in nftables mode", nft, onNode, passes, refused, false},
		{"source ranges", c, balanced, refused, timeout, true},
		{"source ranges, on the node", c, balancedOnNode, passes, timeout, true},
		{"source ranges, passes in a pod", c, balanced, passes, timeout, false},
		{"source ranges, the other way round", c, balanced, timeout, refused, false},
		{"source ranges, external IP", c, external, refused, timeout, false},
		{"source ranges of a Service with endpoints", full, balanced, refused, timeout, false},
		{"source ranges, in nftables mode", nft, balanced, refused, timeout, false},
		{"node port where none answers", full, nodePort, timeout, refused, true},
		{"node port where none answers, without endpoints", c, nodePort, timeout, refused, false},
		{"node port where none answers, without endpoints, with a firewall", walled, nodePort, refused, timeout, true},
		{"node port where it should answer", full, answering, timeout, refused, false},
		{"node port where none answers, the other way round", full, nodePort, refused, timeout, false},
		{"node port where none answers, in nftables mode", nft, nodePort, timeout, refused, false},
		{"datagram from the node to an unused port", c, datagram, passes, notSent, true},
		{"datagram from the node to an unallocated address", c, toUnallocated, passes, notSent, true},
		{"datagram from a pod", c, fromPod, passes, notSent, false},
		{"external address, in a pod", c, external, passes, refused, false},
		{"external address, dropped", c, onNode, passes, timeout, false},
	} {
		d := difference{probe: tc.probe, outcomes: [2]Outcome{tc.kube, tc.ours}}
		if got := knownDifference(tc.cluster, d) != ""; got != tc.known {
			t.Errorf("%s: known is %v, want %v", tc.name, got, tc.known)
		}
	}
}
