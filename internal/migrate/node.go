// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/slipstream-proxy/slipstream/internal/config"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/nftables"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/firewall"
)

// node adds the findings of the whole node.
func (m *comparison) node() {
	toIPVS, fromIPVS := m.into.VirtualServers, m.from.VirtualServers
	for _, f := range []desired.Family{desired.IPv4, desired.IPv6} {
		if why := m.family[f]; why != "" && slices.ContainsFunc(m.services, func(s *service) bool { return s.has(f) }) {
			m.add(Stops, "kernel", fmt.Sprintf("%s is not served: %s.", f, why), "Give the node's kernel what is missing.")
		}
	}
	m.scheduler()
	if after := *m.after.FastPath().OffloadPacketThreshold; after > 0 {
		skips, all := "No rule on this node does more than count its packets, or judge connections as a whole.", m.after.FastPath().Bypass == "all"
		if lines := firewall.SkipLines(m.Skips, all); len(lines) > 0 {
			skips = "On this node connections that these rules can match stay off it: " + strings.Join(lines, "; ") + "."
			if all {
				skips = "On this node these have no effect on its packets then: " + strings.Join(lines, "; ") + "."
			}
		}
		m.add(Differs, "fast-path", fmt.Sprintf("The fast path is on, if the kernel has it: after %d packets, a connection to a Service bypasses conntrack and rules of firewalls, and some captures of packets, and has timeouts of its own. %s net.netfilter.nf_conntrack_acct becomes 1.", after, skips),
			"Set fastPath.offloadPacketThreshold to 0 to turn it off.")
	}
	switch {
	case fromIPVS && !toIPVS:
		m.leaveIPVS()
	case !fromIPVS && toIPVS:
		m.add(Differs, "timeouts", "IPVS ends idle TCP connections to Services after 15 minutes, and UDP flows after 5 minutes, if ipvs.tcpTimeout and ipvs.udpTimeout do not say otherwise. conntrack's timeouts were in effect before.",
			"Set ipvs.tcpTimeout if clients keep idle connections for longer.")
		m.add(Action, "firewall-input", "Packets to Services pass the chain INPUT, with the Service's address and port. Before, they passed FORWARD, with the endpoint's.",
			"If the node has firewall rules, accept connections to Services in INPUT.")
		m.add(Differs, "listeners", "The addresses of Services become the node's own (kube-ipvs0). Ports that no Service has are refused there.", "")
	}
	if m.from.FormerIPTables && !m.into.IPTables {
		m.add(Action, "firewall-forward", "kube-proxy's chain KUBE-FORWARD, which accepts packets to Services, is removed. The mode "+m.to+" has no rules that accept packets.",
			"If the chain FORWARD has the policy DROP, as with Docker, and the network plugin does not accept the packets of pods, accept them there.")
	}
	switch { // what is not a port of a Service
	case m.from.VirtualServers:
		m.add(Same, "ping", "ClusterIPs do not answer pings, as with kube-proxy since Kubernetes 1.27. Earlier releases in IPVS mode answer.", "")
	case m.from.FormerIPTables:
		m.add(Differs, "unknown-ports", "Connections to ports that a ClusterIP does not have, and pings of it, are refused. kube-proxy lets the packets be routed.", "")
	}
	if m.from.FormerIPTables {
		m.add(Differs, "unused-addresses", "Packets to addresses of a ServiceCIDR that no Service has are dropped. kube-proxy lets them be routed.", "")
	}
	m.nodePorts()
	if m.from.KernelLocalhost && m.onLoopback(true) && !m.into.KernelLocalhost {
		m.add(Action, "route-localnet", "net.ipv4.conf.all.route_localnet stays 1, as kube-proxy has set it. The mode "+m.to+" does not need it.", "Set it to 0, or restart the node, unless another program needs it.")
	}
	if len(m.masquerading(m.to)) > 0 {
		m.add(Same, "masquerade", "The configuration has the settings for masquerading of the block "+masqueradeBlock(m.From)+" in the block "+masqueradeBlock(m.to)+".", "")
	}
	had, have := m.from.Metrics, m.into.Metrics
	if m.HandlesLocalhostNodePorts() {
		had = slices.Concat(had, m.from.RelayMetrics)
	}
	if m.after.HandlesLocalhostNodePorts() {
		have = slices.Concat(have, m.into.RelayMetrics)
	}
	without := slices.DeleteFunc(slices.Concat(had, m.from.OnlyKubeProxy), func(name string) bool { return slices.Contains(have, name) })
	if len(without) > 0 {
		m.add(Differs, "metrics", "These metrics no longer exist: "+strings.Join(without, ", ")+".", "Adapt dashboards and alerts that use them (https://github.com/slipstream-proxy/slipstream/blob/main/docs/metrics.md).")
	}
}

const maglevMemory = "For every Service, it takes 0.4 to 6.5 MB of kernel memory for each port and family, and a long start"

// scheduler compares how endpoints are chosen.
func (m *comparison) scheduler() {
	former := cmp.Or(m.KubeProxy.IPVS.Scheduler, "rr") // the default of both
	switch {
	case m.into.VirtualServers:
		if !m.from.VirtualServers {
			m.add(Differs, "scheduler", "Endpoints are chosen by the IPVS scheduler "+former+", not at random.", "")
		}
		return
	case !m.from.VirtualServers:
		return
	}
	before, now := "IPVS has chosen endpoints with the scheduler "+former, desired.Random
	if m.kernel.NoAlgorithm == nil {
		balancing, _ := m.after.Balancing()
		now = balancing.Algorithm
	}
	switch now {
	case desired.RoundRobin:
		n := 0
		for _, s := range m.services {
			n += len(s.Spec.Ports)
		}
		if n > nftables.MaxCounters {
			m.add(Differs, "scheduler", fmt.Sprintf("%s. The algorithm rr takes its place for %d Service ports of each family at most; there are %d, and the others choose endpoints at random.", before, nftables.MaxCounters, n),
				"Set scheduler: random, and the annotation slipstream.io/scheduler: rr at the Services that need it.")
			return
		}
		m.add(Same, "scheduler", "The algorithm rr takes the place of the scheduler "+former+".", "")
	case desired.LeastConnections:
		m.add(Differs, "scheduler", before+". The algorithm lc takes its place: endpoints with few connections are chosen with a higher probability, which follows the connections of this node four times a second.", "")
	case desired.Maglev, desired.MaglevPort:
		m.add(Differs, "scheduler", before+". A Maglev table takes its place, so most clients go to another endpoint once. Afterwards few clients move when endpoints change. "+maglevMemory+".", "")
	default:
		do := "Set scheduler in SlipstreamConfiguration, or the annotation slipstream.io/scheduler of Services (https://github.com/slipstream-proxy/slipstream/blob/main/docs/balancing.md)."
		because := ""
		s, err := desired.ParseScheduler(former)
		switch why := m.kernel.NoAlgorithm; {
		case !m.into.Algorithms:
			do = "nftables mode has algorithms (https://github.com/slipstream-proxy/slipstream/blob/main/docs/balancing.md)."
		case why != nil:
			because = ": " + why.Error()
		case err == nil && s.Algorithm.Hashes():
			because = ", not by a Maglev table. " + maglevMemory
			do = "Set the annotation slipstream.io/scheduler: maglev at the Services that need the same endpoint for a client (https://github.com/slipstream-proxy/slipstream/blob/main/docs/balancing.md)."
		}
		m.add(Differs, "scheduler", before+"; now they are chosen at random"+because+".", do)
	}
}

// leaveIPVS compares IPVS with the other modes.
func (m *comparison) leaveIPVS() {
	v := &m.KubeProxy.IPVS
	text := "conntrack's timeouts are in effect for connections to Services, not those of IPVS: by default 15 minutes for idle TCP connections, 2 minutes after a FIN, and 5 minutes for UDP flows"
	for _, t := range []struct {
		field string
		value time.Duration
	}{{"tcpTimeout", v.TCPTimeout.Duration}, {"tcpFinTimeout", v.TCPFinTimeout.Duration}, {"udpTimeout", v.UDPTimeout.Duration}} {
		if t.value != 0 {
			text += fmt.Sprintf("; ipvs.%s is %s", t.field, t.value)
		}
	}
	do := "Set conntrack.tcpEstablishedTimeout (24 hours by default), conntrack.udpTimeout and conntrack.udpStreamTimeout if applications depend on it. They apply to all connections of the node."
	if m.keepsUDP(m.to) {
		do += " The configuration sets conntrack.udpStreamTimeout to ipvs.udpTimeout."
	}
	m.add(Differs, "timeouts", text+".", do)
	if len(v.ExcludeCIDRs) > 0 {
		m.add(Action, "exclude-cidrs", "Virtual servers in ipvs.excludeCIDRs ("+strings.Join(v.ExcludeCIDRs, ", ")+") stay, but the interface kube-ipvs0 is removed.", "If their addresses are on kube-ipvs0, move them to another interface.")
	}
	if v.StrictARP {
		m.add(Action, "strict-arp", "net.ipv4.conf.all.arp_ignore=1 and arp_announce=2 stay, as kube-proxy has set them (ipvs.strictARP). The mode "+m.to+" does not need them, because it puts the addresses of load balancers on no interface.",
			"Set them back, or restart the node, unless another program needs them.")
	}
	m.add(Action, "firewall-input", "Packets to Services pass the chain FORWARD, with the endpoint's address and port. Before, they passed INPUT, with the Service's.",
		"Move firewall rules for Services from INPUT to FORWARD, or to a chain before DNAT (the hook prerouting with a priority below -100).")
	m.add(Differs, "listeners", "The addresses of Services leave the node with kube-ipvs0. A program that binds a socket to one of them fails when it starts again.", "")
}

// nodePorts compares the addresses that serve NodePorts.
func (m *comparison) nodePorts() {
	with := func(f desired.Family) bool {
		return slices.ContainsFunc(m.services, func(s *service) bool { return s.has(f) && len(s.of(desired.NodePort)) > 0 })
	}
	if !with(desired.IPv4) && !with(desired.IPv6) {
		return
	}
	if m.unsetAddresses() && defaultAddresses(m.From) != defaultAddresses(m.to) {
		m.add(Same, "nodeport-addresses", fmt.Sprintf("The configuration sets nodePortAddresses to kube-proxy's default in the mode %s, %s. The default of the mode %s is %s.", m.From, defaultAddresses(m.From), m.to, defaultAddresses(m.to)), "")
	}
	if m.from.KernelLocalhost && m.into.KernelLocalhost && m.onLoopback(true) && with(desired.IPv4) {
		m.add(Differs, "localhost", "NodePorts answer on the loopback addresses of interfaces, usually 127.0.0.1, not on all of 127.0.0.0/8.", "")
	}
	if m.leavesLoopback(m.to) {
		m.add(Same, "localhost", "The configuration sets iptables.localhostNodePorts to false, because NodePorts have not answered on 127.0.0.1.", "")
	}
	if _, all := m.ranges(false); !m.from.VirtualServers && all && with(desired.IPv6) {
		m.add(Differs, "link-local", "NodePorts do not answer on IPv6 link-local addresses.", "")
	}
	if m.Node == nil || !slices.Equal(m.addresses(), []string{config.Primary}) {
		return
	}
	for _, f := range []desired.Family{desired.IPv4, desired.IPv6} {
		if with(f) && !slices.ContainsFunc(m.Node.Status.Addresses, func(a corev1.NodeAddress) bool {
			ip, ok := config.ParseAddr(a.Address)
			return ok && a.Type != corev1.NodeHostName && desired.FamilyOf(ip) == f
		}) {
			m.add(Stops, "primary", fmt.Sprintf("NodePorts do not answer on %s addresses: nodePortAddresses is primary, and the Node object has no address of this family. kube-proxy answers on all then.", f), "Add ranges of this family to nodePortAddresses.")
		}
	}
}
