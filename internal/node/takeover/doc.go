// SPDX-License-Identifier: Apache-2.0

// Package takeover removes what kube-proxy has left on a node, whatever its mode was:
//
//	nftables   the tables "ip kube-proxy" and "ip6 kube-proxy"
//	iptables   its chains in the tables nat, filter and mangle of both families and
//	           of both variants, nf_tables and legacy, and the jumps to them
//	ipvs       virtual servers, the interface kube-ipvs0, its ipsets, and its chains
//
// It is for the time when Slipstream has programmed all Services. New connections are then
// translated by Slipstream, as of hooks of one priority the one registered last is called
// first. Established connections continue, because conntrack translates them as long as
// there are NAT hooks, which Slipstream has. IPVS is different: it translates every packet
// itself, so its virtual servers stay as long as they have established connections, for
// which [Run] waits. In IPVS mode the node's own connections to Services have the Service's
// address as their source; [Prepare] has new ones use another.
//
// A thing that has been removed once is not removed again: whoever creates it later has a
// use for it, such as a kube-proxy that takes over in turn.
//
// No command is run: the kernel is asked directly, by netlink and, for iptables-legacy, by
// socket options. On a node that never had kube-proxy this takes a few requests.
//
// # What is kube-proxy's
//
// Tables, sets and the interface are recognized by their names. So are chains of iptables,
// by exact names and not by "KUBE-": kubelet (KUBE-FIREWALL, KUBE-IPTABLES-HINT,
// KUBE-KUBELET-CANARY, KUBE-MARK-DROP) and network policies (kube-router's, which k3s has,
// are called KUBE-ROUTER-..., KUBE-POD-FW-... and KUBE-NWPLCY-...) use that prefix too. A
// chain of kube-proxy to which another program's rule leads stays, with all that it leads
// to, and is reported; some network plugins use KUBE-MARK-MASQ so.
//
// Virtual servers of IPVS have no names. As kube-proxy itself does, Slipstream takes all
// for kube-proxy's where there is an interface kube-ipvs0, except those in the ranges that
// its configuration excludes.
package takeover
