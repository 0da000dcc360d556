// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// The differences below are those of IPVS mode.

// isElsewhereAllTheSame says whether Slipstream drops what a traffic policy Local keeps on
// this node, where the Service has no endpoint, and kube-proxy sends it to another node's, or
// refuses it if there is none either.
func isElsewhereAllTheSame(c *Cluster, d difference) bool {
	local, has := policyLocal(c, d.probe)
	if d.probe.Kind == Share {
		then := d.probe
		then.To = d.probe.Then
		too, hasToo := policyLocal(c, then)
		return (local && !has || too && !hasToo) && d.outcomes[1].Note == NotBoth
	}
	kube := d.outcomes[0]
	other := len(kube.Answers) > 0 || fails(kube, Refused) || fails(kube, OneOfThem)
	return local && !has && other && fails(d.outcomes[1], failureOf(d, Timeout))
}

// isKeptOnNode says whether kube-proxy keeps what starts on a node or in a pod on n1 too, or
// does not masquerade it, because of externalTrafficPolicy: Local, and with Slipstream it reaches
// any endpoints.
func isKeptOnNode(c *Cluster, d difference) bool {
	local, has := policyLocal(c, d.probe)
	fromHere := d.probe.From != Outside && d.probe.From != Stranger
	if d.probe.Kind == Share { // such connections have one affinity for all addresses
		then := d.probe
		then.To = d.probe.Then
		too, _ := policyLocal(c, then)
		return fromHere && (local || too) && d.outcomes[1].Note != NotBoth
	}
	if !local || !fromHere || len(d.outcomes[0].Answers) == 0 {
		return false
	}
	if !has { // both reach endpoints of other nodes
		kube, ours := d.outcomes[0].Answers, d.outcomes[1].Answers
		as := d.probe.To.Addr().String()
		return d.probe.From == OnNode && len(kube) == 1 && len(kube[as]) > 0 && len(ours) == 1 && slices.Equal(kube[as], ours[Node1])
	}
	for _, servers := range d.outcomes[0].Answers {
		for _, s := range servers {
			name, _, _ := strings.Cut(s, ":")
			if !slices.ContainsFunc(Endpoints, func(e Endpoint) bool { return e.Name == name && e.Node == Node1 }) {
				return false
			}
		}
	}
	for as, servers := range d.outcomes[1].Answers {
		if as != d.probe.From && as != Node1 || strings.HasPrefix(servers[0], Elsewhere) {
			return false
		}
	}
	// What n2 answers to its own pod does not come through n1.
	return len(d.outcomes[1].Failures) == 0 || d.probe.From == OtherPod
}

// isDroppedLater says whether both drop a datagram from the node, Slipstream where the node
// learns of it.
func isDroppedLater(c *Cluster, d difference) bool {
	kube := d.outcomes[0] // some datagrams may meet the one rule, and some the other
	dropped := len(kube.Answers) == 0 && slices.Contains(kube.Failures, Timeout) &&
		!slices.ContainsFunc(kube.Failures, func(f string) bool { return f != Timeout && f != notPermitted })
	return c.Settings.Mode == IPVS && d.probe.From == OnNode && d.probe.Protocol == lab.UDP &&
		dropped && fails(d.outcomes[1], notPermitted)
}

// isNoVirtualServer says whether nftables serves an external IP with Slipstream: other ports reach
// the machine that has it, or none, and its affinity is the same at all such addresses.
func isNoVirtualServer(c *Cluster, d difference) bool {
	external := func(a netip.Addr) bool {
		svc := c.Named(d.probe.Namespace, d.probe.Service)
		return c.Settings.Mode == IPVS && svc != nil && slices.Contains(svc.Spec.ExternalIPs, a.String())
	}
	if d.probe.Kind == Share {
		return external(d.probe.To.Addr()) && external(d.probe.Then.Addr()) && d.outcomes[1].Note == SameServer
	}
	for _, servers := range d.outcomes[1].Answers {
		if slices.ContainsFunc(servers, func(s string) bool { return !strings.HasPrefix(s, Elsewhere+":") }) {
			return false
		}
	}
	return external(d.probe.To.Addr()) && strings.HasPrefix(d.probe.What, "unused port") && fails(d.outcomes[0], failureOf(d, Refused))
}

// policyLocal says whether a traffic policy Local is for a probe's address in IPVS mode, and
// whether the Service has an endpoint on n1 then.
func policyLocal(c *Cluster, p Probe) (local, has bool) {
	svc := c.Named(p.Namespace, p.Service)
	if c.Settings.Mode != IPVS || svc == nil {
		return false, false
	}
	local = svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
	if slices.Contains(svc.Spec.ClusterIPs, p.To.Addr().String()) {
		local = ptr.Deref(svc.Spec.InternalTrafficPolicy, "") == corev1.ServiceInternalTrafficPolicyLocal
	}
	onN1 := c.DeepCopy()
	for _, s := range onN1.Slices {
		for i := range s.Endpoints {
			if ptr.Deref(s.Endpoints[i].NodeName, "") != Node1 {
				s.Endpoints[i].Conditions.Ready, s.Endpoints[i].Conditions.Serving = ptr.To(false), ptr.To(false)
			}
		}
	}
	for _, port := range svc.Spec.Ports {
		at := uint16(port.Port) == p.To.Port() || port.NodePort != 0 && uint16(port.NodePort) == p.To.Port()
		if at && lab.Protocol(port.Protocol) == p.Protocol {
			return local, usable(onN1, svc, port, familyOf(p.To.Addr()))
		}
	}
	return false, false
}

// TestKnownOfIPVSIsNarrow gives the rules of the known differences of IPVS mode what looks much
// the same.
func TestKnownOfIPVSIsNarrow(t *testing.T) {
	var c *Cluster
	var p [2]Probe // to a node port under a policy Local, without and with an endpoint on n1
	for seed := uint64(1); p[0].From == "" || p[1].From == ""; seed++ {
		next := RandomCluster(seed)
		next.ForIPVS()
		for _, candidate := range Plan(next) {
			if local, has := policyLocal(next, candidate); local && candidate.Kind == Reach && candidate.From == PodNoEndpoint {
				if c != next {
					c, p = next, [2]Probe{}
				}
				p[map[bool]int{true: 1}[has]] = candidate
			}
		}
	}
	from := func(p Probe, vantage string) Probe { p.From = vantage; return p }
	datagram := func(p Probe) Probe { p.From, p.Protocol = OnNode, lab.UDP; return p }
	answers := func(as string, servers ...string) Outcome {
		return Outcome{Answers: map[string][]string{as: servers}}
	}
	timeout := Outcome{Failures: []string{Timeout}}
	for _, tc := range []struct {
		name       string
		probe      Probe
		kube, ours Outcome
		known      bool
	}{
		{"to another node", p[0], answers("a", "d:8080"), timeout, true},
		{"to another node, the other way round", p[0], timeout, answers("a", "d:8080"), false},
		{"to another node, with an endpoint", p[1], answers("a", "d:8080"), timeout, false},
		{"kept on the node", p[1], answers("a", "c:8080"), answers("a", "c:8080", "d:8080"), true},
		{"kept on the node, from outside", from(p[1], Outside), answers("client", "c:8080"), answers("client", "c:8080", "d:8080"), false},
		{"kept on another node", p[1], answers("a", "d:8080"), answers("a", "c:8080", "d:8080"), false},
		{"kept on the node, and not reached", p[1], answers("a", "c:8080"), timeout, false},
		{"kept on the node, and led elsewhere", p[1], answers("a", "c:8080"), answers("a", "elsewhere:9"), false},
		{"from the node, seen as the Service", from(p[0], OnNode), answers(p[0].To.Addr().String(), "d:8080"), answers(Node1, "d:8080"), true},
		{"a datagram from the node, dropped", datagram(p[0]), Outcome{Failures: []string{notPermitted, Timeout}}, Outcome{Failures: []string{notPermitted}}, true},
		{"a datagram from the node, refused", datagram(p[0]), Outcome{Failures: []string{Refused, Timeout}}, Outcome{Failures: []string{notPermitted}}, false},
		{"from a pod, seen as the Service", p[0], answers(p[0].To.Addr().String(), "d:8080"), answers(Node1, "d:8080"), false},
		{"from the node, seen as the Service, another endpoint", from(p[0], OnNode), answers(p[0].To.Addr().String(), "d:8080"), answers(Node1, "n2:8080"), false},
		{"kept on the node, without an endpoint", p[0], answers("a", "c:8080"), answers("a", "d:8080"), false},
	} {
		d := difference{probe: tc.probe, outcomes: [2]Outcome{tc.kube, tc.ours}}
		if got := knownDifference(c, d) != ""; got != tc.known {
			t.Errorf("%s: known is %v, want %v", tc.name, got, tc.known)
		}
	}
}
