// SPDX-License-Identifier: Apache-2.0

// Package takeover removes kube-proxy's objects from a node, of all modes:
//
//	nftables   the tables "ip kube-proxy" and "ip6 kube-proxy"
//	iptables   its chains in the tables nat, filter and mangle of both families and
//	           of both variants, nf_tables and legacy, and the jumps to them
//	ipvs       virtual servers, the interface kube-ipvs0, its ipsets, and its chains
//
// It runs after Slipstream has programmed all Services. Slipstream then translates new
// connections, because of hooks with the same priority the last one registered is called
// first. Established connections continue, because conntrack translates them as long as NAT
// hooks exist, which Slipstream has. But IPVS translates every packet itself, so [Run] waits
// until virtual servers have no established connections. In IPVS mode the node's own
// connections to Services have the Service's address as their source; [Prepare] changes that
// for new ones.
//
// An object that was removed once is not removed again, because a later one may belong to a
// kube-proxy that takes over in turn.
//
// No commands are used, only netlink and, for iptables-legacy, socket options. On a node that
// never had kube-proxy this takes a few requests.
//
// # Recognizing kube-proxy's objects
//
// Tables, sets and the interface are recognized by their names. So are chains of iptables, by
// exact names, because the prefix "KUBE-" is also used by kubelet (KUBE-FIREWALL,
// KUBE-IPTABLES-HINT, KUBE-KUBELET-CANARY, KUBE-MARK-DROP) and by network policies
// (KUBE-ROUTER-..., KUBE-POD-FW-... and KUBE-NWPLCY-... of kube-router, also in k3s). A chain
// to which another program's rule leads stays, with all chains that it leads to, and is
// reported; some network plugins use KUBE-MARK-MASQ.
//
// Virtual servers of IPVS have no names. If there is an interface kube-ipvs0, all of them are
// taken for kube-proxy's, as kube-proxy itself does, except those in the ranges that its
// configuration excludes.
package takeover
