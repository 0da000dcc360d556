// SPDX-License-Identifier: Apache-2.0

// Package takeover removes what kube-proxy has left on a node, whatever its mode was:
//
//	nftables   the tables "ip kube-proxy" and "ip6 kube-proxy"
//	iptables   its chains in the tables nat, filter and mangle of both families and
//	           of both variants, nf_tables and legacy, and the jumps to them
//	ipvs       virtual servers, the interface kube-ipvs0, its ipsets, and its chains
//
// It is for the time when Slipstream has programmed all Services: connections that
// begin then are ours to translate, as of the hooks of one priority the one that came
// last is asked first. Those that began before go on, because it is conntrack that
// translates them, for as long as anything on the node has hooks for that, which ours
// are. It is otherwise with IPVS, which translates itself, in all of a connection's
// packets. So its virtual servers stay for as long as they have established
// connections, and [Run] waits for that. The node's own connections to Services begin with
// the Service's address in IPVS mode, of which there must be no new ones by then; that is
// what [Prepare] is for.
//
// What is gone is not removed again. Whoever has such a thing later has made it then, such
// as a kube-proxy that is to take over in turn.
//
// No command is needed for any of it: the kernel is asked directly, by netlink, and for
// iptables-legacy by socket options. Where kube-proxy has never been, looking for it
// takes a few requests.
//
// # What is kube-proxy's
//
// Its tables, sets and interface go by their names. Chains of iptables do too, but by
// exact names and not by "KUBE-": kubelet (KUBE-FIREWALL, KUBE-IPTABLES-HINT,
// KUBE-KUBELET-CANARY, KUBE-MARK-DROP) and network policies (kube-router's, which k3s
// has, are called KUBE-ROUTER-..., KUBE-POD-FW-... and KUBE-NWPLCY-...) have some of
// that prefix as well. A chain of kube-proxy's to which a rule of somebody else's leads
// stays, with all that it leads to, and is reported; KUBE-MARK-MASQ is used so by some
// network plugins.
//
// Virtual servers of IPVS have no names. As for kube-proxy itself, all are taken for its
// own where there is an interface kube-ipvs0, but those in the ranges that its
// configuration excludes.
package takeover
