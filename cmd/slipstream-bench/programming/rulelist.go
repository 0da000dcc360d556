// SPDX-License-Identifier: Apache-2.0

package programming

import (
	"fmt"
	"io"
	"net/netip"
)

// ruleList writes a cluster as input for iptables-restore in the shape of kube-proxy's
// iptables mode: one list with a rule for each Service, a chain for each Service and one for
// each of its endpoints. The list leads to the Service's chain; that draws an endpoint's
// chain, which marks hairpin traffic and translates the address.
type ruleList struct {
	cluster  *cluster
	comments bool // at endpoints too
	family
	out io.Writer
	err error
}

// Names of chains. They are as long as kube-proxy's.
const (
	listChain      = "BASE-SERVICES"
	markChain      = "BASE-MARK-MASQ"
	postChain      = "BASE-POSTROUTING"
	servicePrefix  = "BASE-SVC-"
	endpointPrefix = "BASE-SEP-"
)

// fewEndpoints is up to how many endpoints in the cluster kube-proxy writes comments
// about each (largeClusterEndpointsThreshold).
const fewEndpoints = 1000

func newRuleList(c *cluster, f family, out io.Writer) *ruleList {
	n := 0
	for service := range c.each() {
		for _, one := range c.pods(service) {
			n += len(one)
		}
		if n > fewEndpoints {
			break
		}
	}
	return &ruleList{cluster: c, comments: n <= fewEndpoints, family: f, out: out}
}

func (r *ruleList) printf(format string, args ...any) {
	if _, err := fmt.Fprintf(r.out, format, args...); err != nil && r.err == nil {
		r.err = err
	}
}

// all writes everything.
func (r *ruleList) all() error {
	r.printf("*nat\n:%s - [0:0]\n:%s - [0:0]\n:%s - [0:0]\n", listChain, markChain, postChain)
	for service := range r.cluster.each() {
		r.declare(service)
	}
	r.printf("-A PREROUTING -j %[1]s\n-A OUTPUT -j %[1]s\n-A POSTROUTING -j %[2]s\n", listChain, postChain)
	r.printf("-A %s -j MARK --or-mark 0x4000\n", markChain)
	r.printf("-A %s -m mark ! --mark 0x4000/0x4000 -j RETURN\n", postChain)
	r.printf("-A %s -j MARK --xor-mark 0x4000\n", postChain)
	r.printf("-A %s -j MASQUERADE --random-fully\n", postChain)
	r.list()
	for service := range r.cluster.each() {
		r.service(service)
	}
	r.printf("COMMIT\n")
	return r.err
}

// replace writes the replacement of one endpoint as kube-proxy does (KEP-3453): the list as
// a whole, and what else there is of the Service.
func (r *ruleList) replace(c replacement) error {
	r.printf("*nat\n:%s - [0:0]\n", listChain)
	r.declare(c.service)
	old := r.endpointChain(c.service, c.old)
	r.printf(":%s - [0:0]\n", old)
	r.list()
	r.service(c.service)
	r.printf("-X %s\nCOMMIT\n", old)
	return r.err
}

// list writes the rule for each Service.
func (r *ruleList) list() {
	for service := range r.cluster.each() {
		r.printf("-A %s -m comment --comment \"%s cluster IP\" %s -j %s\n", listChain, fullName(service), r.matches(service), r.serviceChain(service))
	}
}

// matches matches packets to a Service.
func (r *ruleList) matches(service int) string {
	return fmt.Sprintf("-m tcp -p tcp -d %s --dport %d", r.clusterIP(service), port)
}

// declare writes that a Service's chains are there, and empty.
func (r *ruleList) declare(service int) {
	r.printf(":%s - [0:0]\n", r.serviceChain(service))
	for _, one := range r.cluster.pods(service) {
		for _, pod := range one {
			r.printf(":%s - [0:0]\n", r.endpointChain(service, pod))
		}
	}
}

// service writes the rules in a Service's chains.
func (r *ruleList) service(service int) {
	var all []int
	for _, one := range r.cluster.pods(service) {
		all = append(all, one...)
	}
	chain := r.serviceChain(service)
	r.printf("-A %s -m comment --comment \"%s cluster IP\" %s ! -s %s -j %s\n", chain, fullName(service), r.matches(service), r.family.pods.Masked(), markChain)
	for i, pod := range all {
		at := netip.AddrPortFrom(r.podIP(pod), targetPort)
		match := r.comment(fmt.Sprintf("%s -> %s", fullName(service), at))
		if left := len(all) - i; left > 1 {
			match += fmt.Sprintf(" -m statistic --mode random --probability %.10f", 1/float64(left))
		}
		r.printf("-A %s%s -j %s\n", chain, match, r.endpointChain(service, pod))
	}
	comment := r.comment(fullName(service))
	for _, pod := range all {
		at := netip.AddrPortFrom(r.podIP(pod), targetPort)
		chain := r.endpointChain(service, pod)
		r.printf("-A %s%s -s %s -j %s\n", chain, comment, at.Addr(), markChain)
		r.printf("-A %s%s -m tcp -p tcp -j DNAT --to-destination %s\n", chain, comment, at)
	}
}

// comment is a comment about an endpoint, if there are any.
func (r *ruleList) comment(text string) string {
	if !r.comments {
		return ""
	}
	return fmt.Sprintf(" -m comment --comment %q", text)
}

func fullName(service int) string {
	return namespaceOf(service) + "/" + nameOf(service) + ":" + portName
}

func (r *ruleList) serviceChain(service int) string { return servicePrefix + hash16(fullName(service)) }

func (r *ruleList) endpointChain(service, pod int) string {
	return endpointPrefix + hash16(fmt.Sprint(fullName(service), r.podIP(pod)))
}
