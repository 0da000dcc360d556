// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/node/sysctl"
)

// prefix begins the names of all our chains and sets.
const prefix = "SLIP-"

// Chains that always exist.
const (
	chainServices   = prefix + "SERVICES" // the tree of ClusterIPs begins in it
	chainExternal   = prefix + "EXTERNAL"
	chainOutside    = prefix + "OUTSIDE"
	chainMasquerade = prefix + "MASQUERADE"

	// The ways of packets to addresses that serve NodePorts: of all, of those of this node
	// and its pods, and to NodePorts without a pool for traffic from outside.
	chainNodePorts   = prefix + "NODE-PORTS"
	chainNodeInside  = prefix + "NODE-INSIDE"
	chainNodeCluster = prefix + "NODE-CLUSTER"

	// In the table filter.
	chainFirewall   = prefix + "FIREWALL"
	chainInput      = prefix + "INPUT"
	chainForward    = prefix + "FORWARD"
	chainTranslated = prefix + "TRANSLATED"
	chainNodeReject = prefix + "NODE-REJECT" // of NodePorts without endpoints
	chainNodeDrop   = prefix + "NODE-DROP"
	chainLocalnet   = prefix + "LOCALNET" // stays while route_localnet is set (Remove)

	// Chains that other trees begin in.
	chainExternalTree = prefix + "TREE-EXTERNAL"
	chainLocalTree    = prefix + "TREE-LOCAL"
	chainHairpinTree  = prefix + "TREE-HAIRPIN"
	chainNodeTree     = prefix + "TREE-NODE"        // NodePorts without a pool for traffic from outside
	chainInsideTree   = prefix + "TREE-NODE-INSIDE" // the others, for traffic from inside
	chainOutsideTree  = prefix + "TREE-NODE-LOCAL"  // and for traffic from outside
	chainRefusedTree  = prefix + "TREE-REFUSED"     // NodePorts without endpoints; in the table filter
	chainForwardTree  = prefix + "TREE-FORWARD"     // in the table filter

	// branchPrefix begins the names of a tree's other chains.
	branchPrefix = prefix + "BR-"
)

const (
	tableNAT    = "nat"
	tableFilter = "filter"
)

// chainTables are the tables that have our chains, in the order in which to write them.
var chainTables = []string{tableFilter, tableNAT}

// entries are the rules through which packets enter our chains in a table, as iptables-save
// prints them. They are inserted at the beginning of built-in chains. Those of POSTROUTING
// are not in a chain of ours, which would be one rule more for each connection.
//
// Only the first packet of a connection passes the nat chains. The filter chains are for
// packets that Services have not translated, with two exceptions: chainForward, as
// kube-proxy's KUBE-FORWARD, accepts translated packets in case the policy of FORWARD is
// DROP, and chainInput, as KUBE-NODEPORTS, accepts health checks of load balancers.
func entries(c dataplane.Config, f desired.Family, table string) []string {
	if table == tableFilter {
		all := []string{
			localnetEntry,
			"INPUT -j " + chainInput,
			"OUTPUT " + untranslated + " -j " + chainFirewall,
			"FORWARD -j " + chainForward,
		}
		if f == desired.IPv6 {
			all = all[1:]
		}
		return all
	}
	return []string{
		"PREROUTING -j " + chainServices,
		"OUTPUT -j " + chainServices,
		"POSTROUTING -m mark --mark " + markOf(c) + " -j " + chainMasquerade,
		"POSTROUTING " + in(f, setHairpin, "src") + " " + in(f, setHairpin, "dst") + " -m conntrack --ctstate DNAT -j " + chainHairpinTree,
	}
}

// With route_localnet, which NodePorts on loopback addresses need, the kernel accepts packets
// of neighbors to these addresses (CVE-2020-8558). This rule drops them.
const (
	localnetEntry = "INPUT -d 127.0.0.0/8 ! -i lo -j " + chainLocalnet
	localnetRule  = "-m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP\n"
)

// RouteLocalnet programs the rule that route_localnet needs, unless it exists, and then sets
// the parameter, both in the calling thread's network namespace.
func RouteLocalnet(ctx context.Context) error {
	v, err := Detect(ctx, 0)
	if err != nil {
		return err
	}
	text, err := v.save(ctx, 0, desired.IPv4, tableFilter)
	if err != nil {
		return err
	}
	there := parseSave(text)
	out := &script{known: there.registry(), now: registry{}}
	out.chain(chainLocalnet, []byte(localnetRule))
	if !slices.Contains(there.entries, localnetEntry) {
		out.rule("-I " + localnetEntry)
	}
	if err := v.restore(ctx, 0, desired.IPv4, out.finish(tableFilter, math.MaxInt)); err != nil {
		return fmt.Errorf("dropping packets from other machines to loopback addresses: %w", err)
	}
	return sysctl.RouteLocalnet(ctx)
}

// markOf is the mark of packets to masquerade, with its mask.
func markOf(c dataplane.Config) string {
	return fmt.Sprintf("0x%[1]x/0x%[1]x", uint32(1)<<c.MasqueradeBit)
}

const untranslated = "-m conntrack --ctstate NEW -m conntrack ! --ctstate DNAT"

// notLocalAddress matches packets that are not for an address of this node.
const notLocalAddress = " -m addrtype ! --dst-type LOCAL"

// ruleWriter writes the chains that depend on configuration alone.
type ruleWriter struct {
	family desired.Family
	out    *script
}

// chain writes a chain of rules, each a line.
func (w *ruleWriter) chain(name string, rules ...string) {
	w.out.chain(name, []byte(strings.Join(rules, "\n")+"\n"))
}

// in matches packets by a set.
func in(f desired.Family, k setKind, by string) string {
	return "-m set --match-set " + setName(f, k) + " " + by
}

func (w *ruleWriter) in(k setKind, by string) string { return in(w.family, k, by) }

// notIn matches packets to frontends that are not in a set.
func (w *ruleWriter) notIn(k setKind) string {
	return " -m set ! --match-set " + setName(w.family, k) + " " + byFrontend
}

// notAllowed matches packets to restricted frontends from sources that may not connect.
func (w *ruleWriter) notAllowed() string {
	return w.in(setRestricted, byFrontend) + " -m set ! --match-set " + setName(w.family, setSources) + " " + byFrontend + ",src"
}

// byFrontend is how packets are looked up in sets of frontends.
const byFrontend = "dst,dst"

// services are the rules before the tree's in chainServices.
func (w *ruleWriter) services(c dataplane.Config, full *desired.Change) string {
	head := w.in(setExternal, byFrontend) + " -g " + chainExternal + "\n" + w.toNode() + " -g " + chainNodePorts + "\n"
	for _, rule := range w.masquerade(c, full.Masquerade.ClusterIPs, full.Local, w.in(setClusterIPs, "dst")+" ") {
		head += rule + "\n"
	}
	return head
}

// toNode matches packets to addresses that serve NodePorts.
func (w *ruleWriter) toNode() string {
	return w.in(setNodeAddresses, "dst") + " -m set ! --match-set " + setName(w.family, setClusterIPs) + " dst"
}

// masquerade is the rule that marks packets for masquerading, of those that match, if any.
func (w *ruleWriter) masquerade(c dataplane.Config, m desired.Masquerade, local desired.LocalTraffic, match string) []string {
	mark := match + "-j MARK --set-xmark " + markOf(c)
	switch pod := podMatch(local, w.family); {
	case m == desired.MasqueradeAlways:
		return []string{mark}
	case m == desired.MasqueradeNode:
		return []string{"-m addrtype --src-type LOCAL " + mark}
	case pod != "":
		return []string{"! " + pod + " " + mark}
	}
	return nil
}

// nat writes the chains of the table nat that do not depend on Services.
func (w *ruleWriter) nat(c dataplane.Config, full *desired.Change) {
	external := []string{
		w.notAllowed() + " -j RETURN",
		w.in(setLocal, byFrontend) + " -g " + chainOutside,
	}
	external = append(external, w.masquerade(c, full.Masquerade.External, full.Local, "")...)
	w.chain(chainExternal, append(external, "-g "+chainExternalTree)...)
	w.chain(chainOutside, append(w.fromInside(c, full, chainExternalTree), "-g "+chainLocalTree)...)

	w.chain(chainNodePorts, append(w.fromInside(c, full, chainNodeInside), "-j "+chainOutsideTree, "-g "+chainNodeCluster)...)
	w.chain(chainNodeInside, "-j "+chainInsideTree, "-g "+chainNodeCluster)
	clearMark := fmt.Sprintf("-j MARK --set-xmark 0x0/0x%x", uint32(1)<<c.MasqueradeBit)
	w.chain(chainNodeCluster, append(w.masquerade(c, full.Masquerade.External, full.Local, ""), "-j "+chainNodeTree, clearMark)...)

	w.chain(chainMasquerade,
		clearMark,
		"-j MASQUERADE --random-fully",
	)
}

// fromInside are the rules that send packets of this node and its pods to another chain. Their
// connections may go to all endpoints, as through a load balancer and another node.
func (w *ruleWriter) fromInside(c dataplane.Config, full *desired.Change, to string) (rules []string) {
	if pod := podMatch(full.Local, w.family); pod != "" {
		rules = append(rules, pod+" -g "+to)
	}
	rules = append(rules, w.masquerade(c, full.Masquerade.Local, full.Local, "")...)
	return append(rules, "-m addrtype --src-type LOCAL -g "+to)
}

// filter writes the chains of the table filter that do not depend on Services.
func (w *ruleWriter) filter(c dataplane.Config, liberal bool) {
	unknownPort := w.in(setClusterIPs, "dst") + notLocalAddress // a node may have a ClusterIP on an interface
	unreachable := [...]string{desired.IPv4: "icmp-port-unreachable", desired.IPv6: "icmp6-port-unreachable"}[w.family]
	reject := func(match string) []string {
		return []string{
			"-p tcp " + match + "-j REJECT --reject-with tcp-reset",
			match + "-j REJECT --reject-with " + unreachable,
		}
	}
	w.chain(chainFirewall, slices.Concat(
		[]string{w.notAllowed() + " -j DROP"},
		reject(w.in(setReject, byFrontend)+" "),
		[]string{w.in(setDrop, byFrontend) + " -j DROP"},
		reject(unknownPort+" "),
		[]string{
			w.in(setServiceCIDRs, "dst") + notLocalAddress + " -j DROP",
			w.toNode() + w.notIn(setExternal) + " -j " + chainRefusedTree,
		},
	)...)
	w.chain(chainNodeReject, reject("")...)
	w.chain(chainNodeDrop, "-j DROP")

	if w.family == desired.IPv4 {
		w.out.chain(chainLocalnet, []byte(localnetRule))
	}
	w.chain(chainInput,
		untranslated+" -j "+chainFirewall,
		"-p tcp "+w.in(setHealthChecks, "dst")+" -j ACCEPT",
	)

	accept := "-m mark --mark " + markOf(c) + " -j ACCEPT"
	forward := []string{
		"-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
		"-m conntrack --ctstate DNAT -g " + chainTranslated,
		"-m conntrack --ctstate NEW -j " + chainFirewall,
		accept,
	}
	if !liberal {
		// Segments that conntrack considers out of window are not translated back.
		// With the endpoint's address, they would make the client reset the connection. Packets that
		// are passed on (desired.Frontend.Passes) look like that if the replies take another way.
		forward = append(forward, "-m conntrack --ctstate INVALID"+w.notIn(setLocal)+" -j DROP")
	}
	w.chain(chainForward, forward...)
	// Packets of an endpoint to itself have no mark; POSTROUTING masquerades them by
	// their addresses.
	w.chain(chainTranslated, accept, w.in(setHairpin, "src")+" "+w.in(setHairpin, "dst")+" -g "+chainForwardTree)
}

// podMatch matches traffic of this node's pods; it is empty where the configuration does not
// say which that is.
func podMatch(l desired.LocalTraffic, f desired.Family) string {
	switch {
	case l.Iface != "" && l.IsPrefix:
		return "-i " + l.Iface + "+"
	case l.Iface != "":
		return "-i " + l.Iface
	case l.CIDRs[f].IsValid():
		return "-s " + l.CIDRs[f].String()
	}
	return ""
}
