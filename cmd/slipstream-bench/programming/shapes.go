// SPDX-License-Identifier: Apache-2.0

package programming

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"regexp"
	"strings"

	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/cluster"
	corev1 "k8s.io/api/core/v1"
)

// hash keeps names apart that have to be cut short.
func hash(s string, length int) string {
	sum := sha256.Sum256([]byte(s))
	return base32.StdEncoding.EncodeToString(sum[:])[:length]
}

// nftShape is rules in the shape of kube-proxy's nftables mode (KEP-3866): a chain for
// each Service and one for each of its endpoints. A verdict map leads from ClusterIP,
// protocol and port to the Service's chain. That chooses an endpoint's chain, which marks
// hairpin traffic and translates the address.
type nftShape struct{}

func (nftShape) name() string                 { return "chains via nft -f" }
func (nftShape) load(cluster.Family) []string { return []string{"nft", "-f", "-"} }

func (nftShape) list(f cluster.Family) []string {
	return append([]string{"nft", "list", "table"}, strings.Fields(nftTable(f))...)
}

func (nftShape) address() *regexp.Regexp {
	return regexp.MustCompile(`(?m)^\s*meta l4proto tcp dnat to (\S+)$|(\S+) \. tcp \. 80 comment "[^"]*" : goto service-`)
}

// nftFamily and nftTable are a family and the table in nft's notation.
func nftFamily(f cluster.Family) string {
	if f.Name == corev1.IPv6Protocol {
		return "ip6"
	}
	return "ip"
}
func nftTable(f cluster.Family) string { return nftFamily(f) + " slipstream-bench" }

// nftBase is all that does not depend on Services.
const nftBase = `table %[1]s {
	map service-ips { type %[2]s_addr . inet_proto . inet_service : verdict; }
	set cluster-ips { type %[2]s_addr; }
	chain mark-for-masquerade { meta mark set meta mark | 0x4000; }
	chain masquerading {
		meta mark & 0x4000 == 0 return
		meta mark set meta mark ^ 0x4000
		masquerade fully-random
	}
	chain services { %[3]s daddr . meta l4proto . th dport vmap @service-ips; }
	chain nat-prerouting { type nat hook prerouting priority -100; jump services; }
	chain nat-output { type nat hook output priority -100; jump services; }
	chain nat-postrouting { type nat hook postrouting priority 100; jump masquerading; }
	chain filter-forward { type filter hook forward priority -99; ct state new %[3]s daddr @cluster-ips reject; }
	chain filter-output { type filter hook output priority -99; ct state new %[3]s daddr @cluster-ips reject; }
}
`

func (s nftShape) all(w *script, services []int, first bool) {
	t := nftTable(w.Family)
	if first {
		w.printf(nftBase, t, strings.ToLower(string(w.Name)), nftFamily(w.Family))
	}
	for _, service := range services {
		chain := s.serviceChain(w, service)
		w.printf("add chain %s %s\n", t, chain)
		for _, pod := range w.cluster.Pods(service) {
			s.endpoint(w, service, pod)
		}
		s.service(w, service)
		w.printf("add element %s service-ips { %s . tcp . %d comment \"%s\" : goto %s }\n", t,
			w.ClusterIP(service), cluster.Port, w.cluster.FullName(service), chain)
		w.printf("add element %s cluster-ips { %s }\n", t, w.ClusterIP(service))
	}
}

func (s nftShape) replace(w *script, r cluster.Replacement) {
	t, old := nftTable(w.Family), s.endpointChain(w, r.Service, r.Old)
	w.printf("flush chain %s %s\n", t, s.serviceChain(w, r.Service))
	s.endpoint(w, r.Service, r.New)
	s.service(w, r.Service)
	w.printf("flush chain %[1]s %[2]s\ndelete chain %[1]s %[2]s\n", t, old)
}

func (s nftShape) endpoint(w *script, service, pod int) {
	chain, at := nftTable(w.Family)+" "+s.endpointChain(w, service, pod), w.PodAddr(pod)
	w.printf("add chain %s\n", chain)
	w.printf("add rule %s %s saddr %s jump mark-for-masquerade\n", chain, nftFamily(w.Family), at.Addr())
	w.printf("add rule %s meta l4proto tcp dnat to %s\n", chain, at)
}

func (s nftShape) service(w *script, service int) {
	nft, chain := nftFamily(w.Family), nftTable(w.Family)+" "+s.serviceChain(w, service)
	w.printf("add rule %s %s daddr %s tcp dport %d %s saddr != %s jump mark-for-masquerade\n", chain,
		nft, w.ClusterIP(service), cluster.Port, nft, w.Pods)
	var targets []string
	for i, pod := range w.cluster.Pods(service) {
		targets = append(targets, fmt.Sprintf("%d : goto %s", i, s.endpointChain(w, service, pod)))
	}
	w.printf("add rule %s numgen random mod %d vmap { %s }\n", chain, len(targets), strings.Join(targets, ", "))
}

func (nftShape) serviceChain(w *script, service int) string {
	name := w.cluster.NamespaceOf(service) + "/" + cluster.Name(service) + "/tcp/" + cluster.PortName
	return "service-" + hash(name, 8) + "-" + name
}

func (nftShape) endpointChain(w *script, service, pod int) string {
	ip := strings.ReplaceAll(w.PodIP(pod).String(), ":", ".") // nft takes no colon in a name
	name := fmt.Sprintf("%s/%s/tcp/%s__%s/%d", w.cluster.NamespaceOf(service), cluster.Name(service), cluster.PortName, ip, cluster.TargetPort)
	return "endpoint-" + hash(name, 8) + "-" + name
}

// iptablesShape is rules in the shape of kube-proxy's iptables mode: one list with a rule
// for each Service, a chain for each Service and one for each of its endpoints. The list
// leads to the Service's chain. That chooses an endpoint's chain, which marks hairpin
// traffic and translates the address.
type iptablesShape struct{ mode string }

// Names of chains, as long as kube-proxy's.
const (
	listChain      = "BASE-SERVICES"
	markChain      = "BASE-MARK-MASQ"
	postChain      = "BASE-POSTROUTING"
	servicePrefix  = "BASE-SVC-"
	endpointPrefix = "BASE-SEP-"
)

// fewEndpoints is up to how many endpoints in the cluster kube-proxy writes a comment
// about each (largeClusterEndpointsThreshold).
const fewEndpoints = 1000

func (s iptablesShape) name() string { return "list via " + s.mode + "-restore" }

func (s iptablesShape) load(f cluster.Family) []string {
	return []string{s.command(f, "restore"), "--noflush", "-w", "60"}
}

func (s iptablesShape) list(f cluster.Family) []string {
	return []string{s.command(f, "save"), "-t", "nat"}
}

func (iptablesShape) address() *regexp.Regexp {
	return regexp.MustCompile(`(?m)^-A ` + endpointPrefix + `.* --to-destination (\S+)$|^-A ` + listChain + ` -d (\S+)/\d+ .* -j ` + servicePrefix)
}

func (s iptablesShape) command(f cluster.Family, what string) string {
	return strings.Replace(s.mode, "ip", nftFamily(f), 1) + "-" + what
}

func (s iptablesShape) all(w *script, services []int, _ bool) {
	w.printf("*nat\n:%[1]s - [0:0]\n:%[2]s - [0:0]\n:%[3]s - [0:0]\n", listChain, markChain, postChain)
	for _, service := range services {
		s.declare(w, service)
	}
	w.printf(`-A PREROUTING -j %[1]s
-A OUTPUT -j %[1]s
-A POSTROUTING -j %[3]s
-A %[2]s -j MARK --or-mark 0x4000
-A %[3]s -m mark ! --mark 0x4000/0x4000 -j RETURN
-A %[3]s -j MARK --xor-mark 0x4000
-A %[3]s -j MASQUERADE --random-fully
`, listChain, markChain, postChain)
	s.services(w)
	for _, service := range services {
		s.service(w, service)
	}
	w.printf("COMMIT\n")
}

// replace writes what kube-proxy does (KEP-3453): the whole list, and all of the Service.
func (s iptablesShape) replace(w *script, r cluster.Replacement) {
	old := endpointChain(w, r.Service, r.Old)
	w.printf("*nat\n:%s - [0:0]\n:%s - [0:0]\n", listChain, old)
	s.declare(w, r.Service)
	s.services(w)
	s.service(w, r.Service)
	w.printf("-X %s\nCOMMIT\n", old)
}

func (iptablesShape) services(w *script) {
	for i := range w.cluster.Each() {
		w.printf("-A %s -m comment --comment \"%s cluster IP\" %s -j %s\n", listChain, w.cluster.FullName(i), matches(w, i), serviceChain(w, i))
	}
}

// declare writes that a Service's chains exist and are empty.
func (iptablesShape) declare(w *script, service int) {
	w.printf(":%s - [0:0]\n", serviceChain(w, service))
	for _, pod := range w.cluster.Pods(service) {
		w.printf(":%s - [0:0]\n", endpointChain(w, service, pod))
	}
}

func (iptablesShape) service(w *script, service int) {
	name, chain, pods := w.cluster.FullName(service), serviceChain(w, service), w.cluster.Pods(service)
	comment := func(text string) string {
		if w.cluster.Services*w.cluster.Endpoints > fewEndpoints {
			return ""
		}
		return " -m comment --comment \"" + text + "\""
	}
	w.printf("-A %s -m comment --comment \"%s cluster IP\" %s ! -s %s -j %s\n", chain, name, matches(w, service), w.Pods, markChain)
	for i, pod := range pods {
		match := comment(fmt.Sprintf("%s -> %s", name, w.PodAddr(pod)))
		if left := len(pods) - i; left > 1 {
			match += fmt.Sprintf(" -m statistic --mode random --probability %.10f", 1/float64(left))
		}
		w.printf("-A %s%s -j %s\n", chain, match, endpointChain(w, service, pod))
	}
	for _, pod := range pods {
		chain := endpointChain(w, service, pod) + comment(name)
		w.printf("-A %s -s %s -j %s\n", chain, w.PodIP(pod), markChain)
		w.printf("-A %s -m tcp -p tcp -j DNAT --to-destination %s\n", chain, w.PodAddr(pod))
	}
}

func matches(w *script, service int) string {
	return fmt.Sprintf("-m tcp -p tcp -d %s --dport %d", w.ClusterIP(service), cluster.Port)
}

func serviceChain(w *script, service int) string {
	return servicePrefix + hash(w.cluster.FullName(service), 16)
}

func endpointChain(w *script, service, pod int) string {
	return endpointPrefix + hash(fmt.Sprint(w.cluster.FullName(service), w.PodIP(pod)), 16)
}
