// SPDX-License-Identifier: Apache-2.0

package programming

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"io"
	"iter"
	"net/netip"
	"strings"
)

// ruleset writes a cluster as commands for nft in the shape of kube-proxy's
// nftables mode (KEP-3866): a chain for each Service and one for each of its
// endpoints. A verdict map goes from ClusterIP, protocol and port to the
// Service's chain; that draws an endpoint's chain, which marks hairpin traffic
// and translates the address.
type ruleset struct {
	cluster *cluster
	family
	out io.Writer
	err error
}

// baselineTable is the name of the table of the baseline.
const baselineTable = "slipstream-bench"

// hook is the table in nft's notation.
func (r *ruleset) hook() string { return r.nft() + " " + baselineTable }

// nft is the family's name in nft's notation.
func (r *ruleset) nft() string {
	if r.name == ipv6.name {
		return "ip6"
	}
	return "ip"
}

// addrType is the type of the family's addresses in nft's notation.
func (r *ruleset) addrType() string {
	if r.name == ipv6.name {
		return "ipv6_addr"
	}
	return "ipv4_addr"
}

func (r *ruleset) printf(format string, args ...any) {
	if _, err := fmt.Fprintf(r.out, format, args...); err != nil && r.err == nil {
		r.err = err
	}
}

// all writes everything.
func (r *ruleset) all() error {
	r.base()
	return r.some(r.cluster.each())
}

// some writes some Services with their endpoints.
func (r *ruleset) some(services iter.Seq[int]) error {
	for service := range services {
		pods := r.cluster.pods(service)
		r.printf("add chain %s %s\n", r.hook(), r.serviceChain(service))
		for _, one := range pods {
			for _, pod := range one {
				r.endpoint(service, pod)
			}
		}
		r.service(service, pods)
		r.printf("add element %s service-ips { %s . tcp . %d comment \"%s/%s:%s\" : goto %s }\n", r.hook(),
			r.clusterIP(service), port, namespaceOf(service), nameOf(service), portName, r.serviceChain(service))
		r.printf("add element %s cluster-ips { %s }\n", r.hook(), r.clusterIP(service))
	}
	return r.err
}

// base writes what is there without Services.
func (r *ruleset) base() {
	nft, t := r.nft(), r.hook()
	r.printf("add table %s\n", t)
	r.printf("add chain %s mark-for-masquerade\n", t)
	r.printf("add rule %s mark-for-masquerade meta mark set meta mark | 0x4000\n", t)
	r.printf("add chain %s masquerading\n", t)
	r.printf("add rule %s masquerading meta mark & 0x4000 == 0 return\n", t)
	r.printf("add rule %s masquerading meta mark set meta mark ^ 0x4000\n", t)
	r.printf("add rule %s masquerading masquerade fully-random\n", t)
	r.printf("add map %s service-ips { type %s . inet_proto . inet_service : verdict; }\n", t, r.addrType())
	r.printf("add set %s cluster-ips { type %s; }\n", t, r.addrType())
	r.printf("add chain %s services\n", t)
	r.printf("add rule %s services %s daddr . meta l4proto . th dport vmap @service-ips\n", t, nft)
	for _, hook := range []string{"prerouting", "output"} {
		r.printf("add chain %s nat-%s { type nat hook %s priority -100; }\n", t, hook, hook)
		r.printf("add rule %s nat-%s jump services\n", t, hook)
	}
	r.printf("add chain %s nat-postrouting { type nat hook postrouting priority 100; }\n", t)
	r.printf("add rule %s nat-postrouting jump masquerading\n", t)
	for _, hook := range []string{"forward", "output"} {
		r.printf("add chain %s filter-%s { type filter hook %s priority -99; }\n", t, hook, hook)
		r.printf("add rule %s filter-%s ct state new %s daddr @cluster-ips reject\n", t, hook, nft)
	}
}

// endpoint writes the chain of an endpoint.
func (r *ruleset) endpoint(service, pod int) {
	chain, ip := r.endpointChain(service, pod), r.podIP(pod)
	r.printf("add chain %s %s\n", r.hook(), chain)
	r.printf("add rule %s %s %s saddr %s jump mark-for-masquerade\n", r.hook(), chain, r.nft(), ip)
	r.printf("add rule %s %s meta l4proto tcp dnat to %s\n", r.hook(), chain, netip.AddrPortFrom(ip, targetPort))
}

// service writes the rules in the chain of a Service.
func (r *ruleset) service(service int, all pods) {
	chain := r.serviceChain(service)
	r.printf("add rule %s %s %s daddr %s tcp dport %d %s saddr != %s jump mark-for-masquerade\n", r.hook(), chain,
		r.nft(), r.clusterIP(service), port, r.nft(), r.family.pods.Masked())
	var goTo []string
	for _, one := range all {
		for _, pod := range one {
			goTo = append(goTo, fmt.Sprintf("%d : goto %s", len(goTo), r.endpointChain(service, pod)))
		}
	}
	r.printf("add rule %s %s numgen random mod %d vmap { %s }\n", r.hook(), chain, len(goTo), strings.Join(goTo, ", "))
}

// replace writes the replacement of one endpoint, which the cluster has made
// already.
func (r *ruleset) replace(c replacement) error {
	r.printf("flush chain %s %s\n", r.hook(), r.serviceChain(c.service))
	r.endpoint(c.service, c.new)
	r.service(c.service, r.cluster.pods(c.service))
	old := r.endpointChain(c.service, c.old)
	r.printf("flush chain %s %s\n", r.hook(), old)
	r.printf("delete chain %s %s\n", r.hook(), old)
	return r.err
}

func (r *ruleset) serviceChain(service int) string {
	name := namespaceOf(service) + "/" + nameOf(service) + "/tcp/" + portName
	return "service-" + hash(name) + "-" + name
}

func (r *ruleset) endpointChain(service, pod int) string {
	name := fmt.Sprintf("%s/%s/tcp/%s__%s/%d", namespaceOf(service), nameOf(service), portName, dashed(r.podIP(pod)), targetPort)
	return "endpoint-" + hash(name) + "-" + name
}

// dashed is an address as nft takes it in a name.
func dashed(ip netip.Addr) string { return strings.ReplaceAll(ip.String(), ":", ".") }

// hash keeps names that have to be cut short apart.
func hash(s string) string { return hash16(s)[:8] }

func hash16(s string) string {
	sum := sha256.Sum256([]byte(s))
	return base32.StdEncoding.EncodeToString(sum[:])[:16]
}
