// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/slipstream-proxy/slipstream/internal/config"
	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/feature"
	"github.com/slipstream-proxy/slipstream/internal/firewall"
)

const (
	clusterIP = "spec: {clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10], ports: [{port: 80}]}"
	nodePort  = "spec: {clusterIP: 10.96.0.10, ports: [{port: 80, nodePort: 30080}]}"
	balancer  = "spec: {clusterIP: 10.96.0.10, loadBalancerSourceRanges: [10.0.0.0/8], healthCheckNodePort: 32000, externalTrafficPolicy: Local, ports: [{port: 80}]}\nstatus: {loadBalancer: {ingress: [{ip: 203.0.113.7}]}}"
	ipv6      = "spec: {clusterIP: '2001:db8::10', ports: [{port: 80, nodePort: 30080}]}"
)

// slow is a second document, without the fast path.
var slow = "\n---\napiVersion: " + config.GroupVersion.String() + "\nkind: " + config.SlipstreamKind + "\nfastPath: {offloadPacketThreshold: 0}"

// parse makes a Service default/web.
func parse(t *testing.T, text string) *corev1.Service {
	t.Helper()
	var s corev1.Service
	if err := yaml.UnmarshalStrict([]byte(text), &s); err != nil {
		t.Fatal(err)
	}
	s.Namespace, s.Name = "default", "web"
	return &s
}

func kubeProxy(t *testing.T, fields string) *Config {
	t.Helper()
	c, err := Parse([]byte("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nclusterCIDR: 10.244.0.0/16\n" + fields))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// probe returns an [Input.Probe] of a node that lacks something for modes.
func probe(kernels map[string]Kernel) func(*config.Config) (Kernel, error) {
	return func(c *config.Config) (Kernel, error) { return kernels[c.Mode()], nil }
}

// TestFindings has a row for each thing that can change. want lists all findings of the node or of
// the Service that a row is about: severity, case, and a part of the text and of what to do.
func TestFindings(t *testing.T) {
	const n, i, v = config.NFTables, config.IPTables, config.IPVS
	const ports = "spec: {clusterIP: 10.96.0.10, ports: [%s]}"
	skips := []firewall.Skip{{Rule: "x", Does: "limits", Keep: true}, {Rule: "y", Does: "marks", Keep: true}, {Rule: "z", Does: "drops"}}
	ipv6Missing := probe(map[string]Kernel{n: {Missing: []dataplane.Missing{{Family: desired.IPv6, Missing: feature.Missing{Feature: "chain type nat", Err: errors.New("no"), Remedy: "needs CONFIG_NFT_NAT"}}}}})
	node4 := &corev1.Node{Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}}}}
	node6 := &corev1.Node{Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "2001:db8::1"}}}}
	other := func(text string) []*corev1.Service {
		s := parse(t, text)
		s.Name = "other"
		return []*corev1.Service{s}
	}
	many := "{port: 1, name: p1}"
	for p := 2; p <= 65; p++ {
		many += fmt.Sprintf(", {port: %d, name: p%d}", p, p)
	}
	for _, c := range []struct {
		name, config, to string
		service          string
		in               Input
		about            string   // the case
		want             []string // of it: "severity part-of-text ~ part-of-do"
		configured       []string // lines of the configuration
		not              []string
	}{
		// The fast path.
		{name: "fast path by default", config: "mode: nftables", to: n, about: "fast-path", want: []string{"differs after 20 packets ~ offloadPacketThreshold to 0"}},
		{name: "fast path skips", config: "mode: nftables", to: n, in: Input{Skips: skips}, about: "fast-path", want: []string{"differs can match stay off it: limits: x; marks: y. ~ offloadPacketThreshold to 0"}},
		{name: "fast path skips all", config: "mode: nftables\n---\n{apiVersion: slipstream.config/v1beta1, kind: SlipstreamConfiguration, fastPath: {bypass: all}}", to: n, in: Input{Skips: skips}, about: "fast-path", want: []string{"differs have no effect on its packets then: limits: x; marks: y; drops: z. ~ offloadPacketThreshold"}},
		{name: "fast path off", config: "mode: nftables" + slow, to: n, about: "fast-path"},
		// Algorithms.
		{name: "rr by default", config: "mode: ipvs", to: n, about: "scheduler", want: []string{"differs scheduler rr; now they are chosen at random. ~ Set scheduler"}, not: []string{"scheduler:"}},
		{name: "rr", config: "mode: ipvs\nipvs: {scheduler: rr}", to: n, about: "scheduler", want: []string{"same rr takes the place of the scheduler rr"}, configured: []string{"scheduler: rr", "kind: SlipstreamConfiguration"}},
		{name: "wrr", config: "mode: ipvs\nipvs: {scheduler: wrr}", to: n, about: "scheduler", want: []string{"same rr takes the place of the scheduler wrr"}, configured: []string{"\nscheduler: wrr\n"}},
		{name: "rr, many", config: "mode: ipvs\nipvs: {scheduler: rr}", to: n, service: fmt.Sprintf(ports, many), about: "scheduler", want: []string{"differs there are 65, and the others choose endpoints at random"}},
		{name: "lc", config: "mode: ipvs\nipvs: {scheduler: lc}", to: n, about: "scheduler", want: []string{"differs lc takes its place"}, configured: []string{"scheduler: lc"}},
		{name: "sed", config: "mode: ipvs\nipvs: {scheduler: sed}", to: n, about: "scheduler", want: []string{"differs lc takes its place"}, configured: []string{"scheduler: lc"}},
		{name: "sh", config: "mode: ipvs\nipvs: {scheduler: sh}", to: n, about: "scheduler", want: []string{"differs scheduler sh; now they are chosen at random, not by a Maglev table. For every Service, it takes 0.4 to 6.5 MB of kernel memory ~ slipstream.io/scheduler: maglev"}, configured: []string{"\nscheduler: random\n"}},
		{name: "mh", config: "mode: ipvs\nipvs: {scheduler: mh}", to: n, about: "scheduler", want: []string{"differs scheduler mh; now they are chosen at random, not by a Maglev table. For every Service"}, configured: []string{"\nscheduler: random\n"}},
		{name: "own sh", config: "mode: ipvs\nipvs: {scheduler: sh}\n---\n{apiVersion: slipstream.config/v1beta1, kind: SlipstreamConfiguration, scheduler: sh}", to: n, about: "scheduler", want: []string{"differs Afterwards few clients move when endpoints change. For every Service, it takes 0.4 to 6.5 MB of kernel memory"}, configured: []string{"\nscheduler: sh\n"}},
		{name: "dh", config: "mode: ipvs\nipvs: {scheduler: dh}", to: n, about: "scheduler", want: []string{"differs now they are chosen at random."}, configured: []string{"scheduler: random"}},
		{name: "lblc", config: "mode: ipvs\nipvs: {scheduler: lblc}", to: n, about: "scheduler", want: []string{"differs now they are chosen at random."}, configured: []string{"scheduler: random"}},
		{name: "sh without hash", config: "mode: ipvs\nipvs: {scheduler: sh}\n---\n{apiVersion: slipstream.config/v1beta1, kind: SlipstreamConfiguration, scheduler: sh}", to: n, in: Input{Probe: probe(map[string]Kernel{n: {NoAlgorithm: errors.New("cannot hash")}})}, about: "scheduler", want: []string{"differs now they are chosen at random: cannot hash."}},
		{name: "own scheduler", config: "mode: ipvs\nipvs: {scheduler: lc}\n---\n{apiVersion: slipstream.config/v1beta1, kind: SlipstreamConfiguration, scheduler: rr}", to: n, about: "scheduler", want: []string{"same rr takes the place"}, configured: []string{"\nscheduler: rr\n"}},
		{name: "lc to iptables", config: "mode: ipvs\nipvs: {scheduler: lc}", to: i, about: "scheduler", want: []string{"differs scheduler lc; now they are chosen at random. ~ nftables mode"}, not: []string{"SlipstreamConfiguration"}},
		{name: "lc to ipvs", config: "mode: ipvs\nipvs: {scheduler: lc}", to: v, about: "scheduler"},
		{name: "random to ipvs", config: "mode: iptables", to: v, about: "scheduler", want: []string{"differs IPVS scheduler rr, not at random"}},
		{name: "random", config: "mode: iptables", to: n, about: "scheduler"},

		// Session affinity.
		{name: "affinity of ipvs", config: "mode: ipvs", to: n, service: "spec: {clusterIP: 10.96.0.10, sessionAffinity: ClientIP, ports: [{port: 80}]}", about: "affinity", want: []string{"differs all addresses of the Service together"}},
		{name: "affinity to iptables", config: "mode: nftables", to: i, service: "spec: {clusterIP: 10.96.0.10, sessionAffinity: ClientIP, ports: [{port: 80}]}", about: "affinity", want: []string{"differs last 100 clients"}},
		{name: "affinity to ipvs", config: "mode: nftables", to: v, service: "spec: {clusterIP: 10.96.0.10, sessionAffinity: ClientIP, ports: [{port: 80}]}", about: "affinity", want: []string{"differs as long as it has connections"}},
		{name: "affinity of the same mode", config: "mode: nftables", to: n, service: "spec: {clusterIP: 10.96.0.10, sessionAffinity: ClientIP, ports: [{port: 80}]}", about: "affinity", want: []string{"differs another endpoint once"}},
		{name: "virtual servers stay", config: "mode: ipvs", to: v, service: "spec: {clusterIP: 10.96.0.10, sessionAffinity: ClientIP, ports: [{port: 80}]}", about: "affinity"},

		// Other settings of IPVS.
		{name: "excludeCIDRs", config: "mode: ipvs\nipvs: {excludeCIDRs: [10.9.0.0/16]}", to: n, about: "exclude-cidrs", want: []string{"action 10.9.0.0/16 ~ another interface"}, configured: []string{"- 10.9.0.0/16"}},
		{name: "excludeCIDRs stay", config: "mode: ipvs\nipvs: {excludeCIDRs: [10.9.0.0/16]}", to: v, about: "exclude-cidrs"},
		{name: "timeouts", config: "mode: ipvs\nipvs: {tcpTimeout: 2h, udpTimeout: 5m}", to: n, about: "timeouts", want: []string{"differs ipvs.tcpTimeout is 2h0m0s; ipvs.udpTimeout is 5m0s ~ sets conntrack.udpStreamTimeout"}, configured: []string{"udpStreamTimeout: 5m0s"}},
		{name: "default timeouts", config: "mode: ipvs", to: i, about: "timeouts", want: []string{"differs 15 minutes ~ conntrack.tcpEstablishedTimeout"}, not: []string{"udpStreamTimeout"}},
		{name: "timeouts stay", config: "mode: ipvs\nipvs: {tcpTimeout: 2h}", to: v, about: "timeouts", configured: []string{"tcpTimeout: 2h"}},
		{name: "timeouts of IPVS", config: "mode: nftables", to: v, about: "timeouts", want: []string{"differs 15 minutes ~ ipvs.tcpTimeout"}},
		{name: "strictARP", config: "mode: ipvs\nipvs: {strictARP: true}", to: n, about: "strict-arp", want: []string{"action arp_ignore=1 ~ back"}},
		{name: "strictARP stays", config: "mode: ipvs\nipvs: {strictARP: true}", to: v, about: "strict-arp"},

		// NodePorts on loopback addresses.
		{name: "localhost by default", config: "mode: iptables", to: n, service: nodePort, about: "localhost", want: []string{"stops 127.0.0.1:30080/TCP is not served ~ " + gate}, configured: []string{"- all"}, not: []string{gate}},
		{name: "no mode set", config: "", to: n, service: nodePort, about: "localhost", want: []string{"stops 127.0.0.1:30080/TCP is not served"}, configured: []string{"- all", "mode: nftables"}},
		{name: "localhost on purpose", config: "mode: iptables\niptables: {localhostNodePorts: true}", to: n, service: nodePort, about: "localhost", want: []string{"differs 127.0.0.1:30080/TCP is served by the process"}, configured: []string{gate + ": true", "- all", "- 127.0.0.0/8"}},
		{name: "localhost of a range", config: "mode: iptables\niptables: {localhostNodePorts: true}\nnodePortAddresses: ['2001:db8::/64']", to: n, service: nodePort, about: "localhost", want: []string{"differs 127.0.0.1:30080/TCP"}, configured: []string{"- 2001:db8::/64", "- 0.0.0.0/0", "- 127.0.0.0/8"}},
		{name: "SCTP on localhost", config: "mode: iptables\niptables: {localhostNodePorts: true}", to: n, service: fmt.Sprintf(ports, "{port: 80, nodePort: 30080, protocol: SCTP}"), about: "localhost", want: []string{"stops 127.0.0.1:30080/SCTP is refused"}},
		{name: "localhost false", config: "mode: iptables\niptables: {localhostNodePorts: false}", to: n, service: nodePort, about: "localhost"},
		{name: "localhost not selected", config: "mode: iptables\nnodePortAddresses: [192.0.2.0/24]", to: n, service: nodePort, about: "localhost"},
		{name: "localhost to ipvs", config: "mode: iptables", to: v, service: nodePort, about: "localhost", want: []string{"stops 127.0.0.1:30080/TCP is not served ~ nftables mode"}},
		{name: "localhost of ipvs", config: "mode: ipvs", to: i, service: nodePort, about: "localhost", want: []string{"same localhostNodePorts to false"}, configured: []string{"localhostNodePorts: false"}},
		{name: "localhost not selected before", config: "mode: iptables\nnodePortAddresses: [192.0.2.0/24]", to: i, service: nodePort, about: "localhost", not: []string{"localhostNodePorts: false"}},
		{name: "localhost stays", config: "mode: iptables", to: i, service: nodePort, about: "localhost", want: []string{"differs not on all of 127.0.0.0/8"}, not: []string{"localhostNodePorts: false"}},
		{name: "relays: UDP begins", config: "mode: nftables\nnodePortAddresses: [localhost]\nfeatureGates: {" + gate + ": true}", to: n, service: fmt.Sprintf(ports, "{port: 80, nodePort: 30080, protocol: UDP}"), about: "localhost", want: []string{"differs 127.0.0.1:30080/UDP begins to answer"}},
		{name: "relays: TCP", config: "mode: nftables\nnodePortAddresses: [localhost]\nfeatureGates: {" + gate + ": true}", to: n, service: nodePort, about: "localhost"},
		{name: "relays: ::1", config: "mode: nftables\nnodePortAddresses: [localhost]\nfeatureGates: {" + gate + ": true}", to: i, service: ipv6, about: "localhost", want: []string{"stops [::1]:30080/TCP is not served"}},
		{name: "::1 of iptables", config: "mode: iptables", to: n, service: ipv6, about: "localhost"},
		{name: "route_localnet", config: "mode: iptables", to: n, about: "route-localnet", want: []string{"action route_localnet stays 1 ~ Set it to 0"}},
		{name: "route_localnet is needed", config: "mode: iptables", to: i, about: "route-localnet"},

		// Addresses of NodePorts.
		{name: "all by default", config: "mode: iptables", to: n, service: nodePort, about: "nodeport-addresses", want: []string{"same in the mode iptables, all. The default of the mode nftables is primary"}, configured: []string{"- all"}},
		{name: "primary by default", config: "mode: nftables", to: i, service: nodePort, about: "nodeport-addresses", want: []string{"same in the mode nftables, primary"}, configured: []string{"- primary"}},
		{name: "keyword", config: "mode: iptables\nnodePortAddresses: [primary]", to: n, service: nodePort, about: "nodeport-addresses", configured: []string{"- primary"}, not: []string{"- all"}},
		{name: "no NodePorts", config: "mode: iptables", to: n, service: clusterIP, about: "nodeport-addresses"},
		{name: "primary of the other family", config: "mode: nftables", to: n, service: ipv6, in: Input{Node: node4}, about: "primary", want: []string{"stops IPv6 ~ ranges"}},
		{name: "primary of the family", config: "mode: nftables", to: n, service: ipv6, in: Input{Node: node6}, about: "primary"},
		{name: "link-local", config: "mode: iptables", to: i, service: ipv6, about: "link-local", want: []string{"differs link-local"}},
		{name: "link-local with ranges", config: "mode: iptables\nnodePortAddresses: ['2001:db8::/64']", to: i, service: ipv6, about: "link-local"},

		// ClusterIPs.
		{name: "ping of ipvs", config: "mode: ipvs", to: n, about: "ping", want: []string{"same pings"}},
		{name: "unknown ports of iptables", config: "mode: iptables", to: i, about: "unknown-ports", want: []string{"differs and pings of it, are refused"}},
		{name: "unknown ports of nftables", config: "mode: nftables", to: i, about: "unknown-ports"},
		{name: "unused addresses", config: "mode: ipvs", to: v, about: "unused-addresses", want: []string{"differs ServiceCIDR"}},
		{name: "unused addresses of nftables", config: "mode: nftables", to: v, about: "unused-addresses"},

		// Addresses of the node.
		{name: "programs", config: "mode: ipvs", to: n, about: "listeners", want: []string{"differs fails when it starts again"}},
		{name: "programs of ipvs", config: "mode: nftables", to: v, about: "listeners", want: []string{"differs kube-ipvs0"}},
		{name: "a program", config: "mode: ipvs", to: n, service: clusterIP, in: Input{Listeners: []netip.AddrPort{netip.MustParseAddrPort("10.96.0.10:53"), netip.MustParseAddrPort("10.96.0.11:53")}}, about: "listener", want: []string{"action 10.96.0.10:53 ~ an address of the node"}},
		{name: "a program stays", config: "mode: ipvs", to: v, service: clusterIP, in: Input{Listeners: []netip.AddrPort{netip.MustParseAddrPort("10.96.0.10:53")}}, about: "listener"},
		{name: "addresses of ipvs", config: "mode: ipvs", to: n, service: balancer, about: "addresses", want: []string{"action 203.0.113.7 ~ MetalLB"}},
		{name: "addresses of the node", config: "mode: ipvs", to: n, service: balancer, in: Input{Addresses: []netip.Addr{netip.MustParseAddr("203.0.113.7")}}, about: "addresses"},
		{name: "addresses stay", config: "mode: ipvs", to: v, service: balancer, about: "addresses"},
		{name: "external IPs of ipvs", config: "mode: ipvs", to: v, service: "spec: {clusterIP: 10.96.0.10, externalIPs: [203.0.113.8], ports: [{port: 80}]}", about: "addresses", want: []string{"action 203.0.113.8"}},
		{name: "external IPs off", config: "mode: ipvs\nfeatureGates: {AllowServiceExternalIPs: false}", to: v, service: "spec: {clusterIP: 10.96.0.10, externalIPs: [203.0.113.8], ports: [{port: 80}]}", about: "addresses"},
		{name: "addresses become own", config: "mode: nftables", to: v, service: balancer, about: "addresses", want: []string{"differs 203.0.113.7"}, configured: []string{"strictARP: true"}},

		// The firewall.
		{name: "INPUT", config: "mode: ipvs", to: n, about: "firewall-input", want: []string{"action pass the chain FORWARD ~ from INPUT to FORWARD"}},
		{name: "FORWARD", config: "mode: iptables", to: v, about: "firewall-input", want: []string{"action pass the chain INPUT ~ accept"}},
		{name: "FORWARD stays", config: "mode: iptables", to: n, about: "firewall-input"},
		{name: "KUBE-FORWARD", config: "mode: iptables", to: n, about: "firewall-forward", want: []string{"action KUBE-FORWARD ~ policy DROP"}},
		{name: "KUBE-FORWARD of ipvs", config: "mode: ipvs", to: v, about: "firewall-forward", want: []string{"action KUBE-FORWARD"}},
		{name: "iptables accepts", config: "mode: ipvs", to: i, about: "firewall-forward"},
		{name: "nftables has none", config: "mode: nftables", to: n, about: "firewall-forward"},
		{name: "health check", config: "mode: iptables", to: n, service: balancer, about: "health-check", want: []string{"action 32000 ~ INPUT"}},
		{name: "health check of iptables", config: "mode: iptables", to: i, service: balancer, about: "health-check"},

		// Fields of Services.
		{name: "source ranges", config: "mode: iptables", to: n, service: balancer, about: "source-ranges", want: []string{"differs dropped, not refused"}},
		{name: "source ranges of nftables", config: "mode: nftables", to: n, service: balancer, about: "source-ranges"},
		{name: "Local of ipvs", config: "mode: ipvs", to: v, service: balancer, about: "external-local", want: []string{"differs from the node and from its pods reach all endpoints"}},
		{name: "Local of iptables", config: "mode: iptables", to: n, service: balancer, about: "external-local"},
		{name: "internal Local of ipvs", config: "mode: ipvs", to: n, service: "spec: {clusterIP: 10.96.0.10, internalTrafficPolicy: Local, ports: [{port: 80}]}", about: "internal-local", want: []string{"differs dropped"}},
		{name: "without endpoints", config: "mode: iptables", to: i, service: balancer, about: "external-unserved", want: []string{"differs 203.0.113.7 are refused"}},
		{name: "SCTP", config: "mode: nftables", to: n, service: fmt.Sprintf(ports, "{port: 80, protocol: SCTP}"), about: "sctp", want: []string{"differs associations end"}},
		{name: "SCTP from IPVS", config: "mode: ipvs", to: n, service: fmt.Sprintf(ports, "{port: 80, protocol: SCTP}"), about: "sctp"},
		{name: "UDP NodePorts from IPVS", config: "mode: ipvs", to: v, service: fmt.Sprintf(ports, "{port: 80, nodePort: 30080, protocol: UDP}"), about: "udp-nodeport"},
		{name: "UDP NodePorts", config: "mode: nftables", to: n, service: fmt.Sprintf(ports, "{port: 80, nodePort: 30080, protocol: UDP}"), about: "udp-nodeport", want: []string{"differs UDP flows"}},
		{name: "UDP", config: "mode: nftables", to: n, service: fmt.Sprintf(ports, "{port: 80, protocol: UDP}"), about: "udp-nodeport"},
		{name: "contested", config: "mode: nftables", to: n, service: "spec: {clusterIP: 10.96.0.10, externalIPs: [203.0.113.8], ports: [{port: 80}]}", in: Input{Services: other("spec: {clusterIP: 10.96.0.11, externalIPs: [203.0.113.8], ports: [{port: 80}, {port: 80, protocol: UDP}]}")}, about: "contested", want: []string{"differs 203.0.113.8:80/TCP belongs to Service default/other"}},
		{name: "another port", config: "mode: nftables", to: n, service: "spec: {clusterIP: 10.96.0.10, externalIPs: [203.0.113.8], ports: [{port: 80}]}", in: Input{Services: other("spec: {clusterIP: 10.96.0.11, externalIPs: [203.0.113.8], ports: [{port: 81}]}")}, about: "contested"},
		{name: "nothing", config: "mode: nftables" + slow, to: n, service: nodePort},

		// The kernel.
		{name: "no IPv6", config: "mode: iptables", to: n, service: ipv6, in: Input{Probe: ipv6Missing}, about: "kernel", want: []string{"stops IPv6 is not served: IPv6: missing chain type nat (needs CONFIG_NFT_NAT): no.", "stops Its IPv6 addresses"}},
		{name: "no IPv6, unused", config: "mode: iptables", to: n, service: clusterIP, in: Input{Probe: ipv6Missing}, about: "kernel"},
		{name: "no primary family", config: "mode: iptables", to: n, service: clusterIP, in: Input{Probe: ipv6Missing, Node: node6}, about: "kernel", want: []string{"stops does not start"}},
		{name: "no nf_tables", config: "mode: iptables", to: n, in: Input{Probe: probe(map[string]Kernel{n: {Err: errors.New("no nf_tables")}})}, about: "kernel", want: []string{"stops cannot run the mode nftables: no nf_tables."}},
		{name: "no IPVS", config: "mode: ipvs", to: v, in: Input{Probe: probe(map[string]Kernel{v: {Err: errors.New("the kernel has no IPVS")}})}, about: "kernel", want: []string{"stops cannot run the mode ipvs: the kernel has no IPVS."}},

		// The rest.
		{name: "masquerading by default", config: "mode: iptables\niptables: {masqueradeAll: false, masqueradeBit: null}", to: n, about: "masquerade"},
		{name: "masquerading", config: "mode: iptables\niptables: {masqueradeAll: true, masqueradeBit: 15}", to: n, about: "masquerade", want: []string{"same of the block iptables in the block nftables"}, configured: []string{"nftables:\n  masqueradeAll: true\n  masqueradeBit: 15"}},
		{name: "metrics of iptables", config: "mode: iptables", to: n, about: "metrics", want: []string{"differs kubeproxy_sync_proxy_rules_iptables_total ~ dashboards"}},
		{name: "metrics of ipvs", config: "mode: ipvs", to: n, about: "metrics", want: []string{"differs kubeproxy_sync_proxy_rules_iptables_restore_failures_total"}},
		{name: "metrics stay", config: "mode: ipvs", to: i, about: "metrics"},
		{name: "nfacct", config: "mode: iptables", to: i, about: "metrics", want: []string{"differs exist: kubeproxy_iptables_localhost_nodeports_accepted_packets_total."}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.service != "" {
				c.in.Services = append(c.in.Services, parse(t, c.service))
			}
			r, err := Compare(kubeProxy(t, c.config), c.in, []string{c.to})
			if err != nil {
				t.Fatal(err)
			}
			m := r.Modes[0]
			all := slices.Clone(m.Node)
			for _, s := range m.Services {
				all = append(all, s.Findings...)
			}
			got := slices.DeleteFunc(all, func(f Finding) bool { return c.about != "" && f.Case != c.about })
			if len(got) != len(c.want) {
				t.Fatalf("findings %q; want %q", got, c.want)
			}
			for i, want := range c.want {
				severity, text, _ := strings.Cut(want, " ")
				text, do, _ := strings.Cut(text, " ~ ")
				if f := got[i]; string(f.Severity) != severity || !strings.Contains(f.Text, text) || !strings.Contains(f.Do, do) {
					t.Errorf("finding %q; want %q", f, want)
				}
			}
			for _, line := range c.configured {
				if !strings.Contains(m.Configuration, line) {
					t.Errorf("%q is missing in the configuration:\n%s", line, m.Configuration)
				}
			}
			for _, line := range c.not {
				if strings.Contains(m.Configuration, line) {
					t.Errorf("%q is in the configuration:\n%s", line, m.Configuration)
				}
			}
			decoded, notes, err := config.Decode([]byte(m.Configuration))
			if err != nil {
				t.Fatalf("%v:\n%s", err, m.Configuration)
			}
			if err := decoded.Validate().ToAggregate(); err != nil || decoded.Mode() != c.to {
				t.Errorf("configuration of mode %s: %v:\n%s", decoded.Mode(), err, m.Configuration)
			}
			for _, note := range append(notes, decoded.Notes()...) {
				if strings.HasSuffix(note.Field, "scheduler") {
					t.Errorf("note %s:\n%s", note, m.Configuration)
				}
			}
		})
	}
}

// TestReport checks the order of Services, which ones count, the recommended mode, and Changes.
func TestReport(t *testing.T) {
	all := []string{config.NFTables, config.IPTables, config.IPVS}
	named := func(name, text string) *corev1.Service {
		s := parse(t, text)
		s.Name = name
		return s
	}
	services := []*corev1.Service{
		named("c", "spec: {clusterIP: 10.96.0.12, sessionAffinity: ClientIP, ports: [{port: 80}]}"),
		named("b", clusterIP),
		named("a", "spec: {clusterIP: 10.96.0.11, sessionAffinity: ClientIP, ports: [{port: 80}]}"),
		named("headless", "spec: {clusterIP: None, sessionAffinity: ClientIP, ports: [{port: 80}]}"),
		named("name", "spec: {type: ExternalName, externalName: example.com}"),
		named("other", "metadata: {labels: {service.kubernetes.io/service-proxy-name: x}}\nspec: {clusterIP: 10.96.0.13, ports: [{port: 80}]}"),
	}
	no := Kernel{Err: errors.New("no")}
	for _, c := range []struct {
		config      string
		services    []*corev1.Service
		kernel      map[string]Kernel
		recommended string
		changes     bool
	}{
		{"mode: nftables" + slow, services[1:2], nil, config.NFTables, false},
		{"mode: nftables", services[1:2], nil, config.NFTables, true},
		{"mode: nftables", services, nil, config.NFTables, true},
		{"mode: iptables", services, nil, config.NFTables, true},
		{"mode: ipvs", services, nil, config.NFTables, true},
		{"mode: ipvs", services, map[string]Kernel{config.NFTables: no}, config.IPVS, true},
		{"mode: ipvs", services, map[string]Kernel{config.NFTables: no, config.IPVS: no}, config.IPTables, true},
		{"mode: ipvs", services, map[string]Kernel{config.NFTables: no, config.IPVS: no, config.IPTables: no}, "", true},
	} {
		r, err := Compare(kubeProxy(t, c.config), Input{Services: c.services, Probe: probe(c.kernel)}, all)
		if err != nil {
			t.Fatal(err)
		}
		if r.Recommended != c.recommended || r.Changes() != c.changes {
			t.Errorf("%s, without %v: recommended %q, changes %v", c.config, c.kernel, r.Recommended, r.Changes())
		}
		if m := r.Modes[0]; c.config == "mode: iptables" && (m.Unchanged != 1 || len(m.Services) != 2 || m.Services[0].Name != "default/a" || m.Services[1].Name != "default/c") {
			t.Errorf("%d unchanged, and %v", m.Unchanged, m.Services)
		}
	}
}

// TestParse checks that what is not of kube-proxy is an error, and that Slipstream's own settings
// stay.
func TestParse(t *testing.T) {
	for text, want := range map[string]string{
		"a: b": "kind: is missing",
		"{apiVersion: slipstream.config/v1beta1, kind: SlipstreamConfiguration}":                 "no KubeProxyConfiguration",
		"{apiVersion: kubeproxy.config.k8s.io/v1alpha1, kind: KubeProxyConfiguration, mode: xy}": "mode",
	} {
		if _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
	c := kubeProxy(t, "mode: ipvs\nipvs: {scheduler: lc}\n---\n{apiVersion: slipstream.config/v1beta1, kind: SlipstreamConfiguration, scheduler: nearest, resetDeletedNodes: true}")
	text, err := c.For(config.NFTables, nil)
	if err != nil || !strings.Contains(text, "scheduler: nearest") || !strings.Contains(text, "resetDeletedNodes: true") {
		t.Errorf("%v:\n%s", err, text)
	}
}
