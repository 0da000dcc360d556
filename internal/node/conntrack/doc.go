// SPDX-License-Identifier: Apache-2.0

// Package conntrack deletes entries of the kernel's connection tracking that
// keep UDP and SCTP flows going where they no longer should: to an endpoint that
// is gone, or to nowhere because the frontend had no endpoint when they began.
// [desired.StaleFlows] describes them.
//
// Rules see only the first packet of a flow, so programming alone does not move
// those that there are. A UDP client that keeps its source port never begins a new
// flow: the entry lives for as long as the client sends. TCP is left alone: its
// connections end, and their clients notice.
//
// # Cost
//
// There is no other way to find the flows of a backend than to have the kernel
// walk its table, with the entries of all network namespaces in it. What can be
// avoided is that it reports entries and that they are looked at here, which costs
// far more than passing over them (BenchmarkClean). So the kernel is asked for as
// little as one filter (CTA_FILTER, Linux 5.8) can say: what all flows to be
// found have in common of family, protocol, original destination and source of
// replies. For one backend that is gone, or one frontend that is new, these are
// its own entries and no others; for several, at the worst, those of their
// protocol.
//
// The kernel refuses such a filter for both address families at once
// (ctnetlink_parse_tuple_filter; TestRefusedFilter). So one [Conn.Clean] takes one
// dump for each family in which there is something to be found: one mostly, two where
// an endpoint has both families, none where nothing can be stale. kube-proxy, which
// has a proxy for each family, dumps as often. Only flows of UDP and of SCTP that have
// no address in common take two in a family, for one would have to be without a filter.
//
// Whatever the kernel reports is looked up in hash tables. A kernel that knows
// no filter, or refuses one, costs time and nothing else. A filter that hides
// entries would be worse, and there are kernels with such filters (see abilities);
// so a [Conn] tries them out once before it relies on them, on an entry of its own
// between addresses that are nobody's. Where the kernel does not compare IPv6
// addresses right, entries of the same ports are reported too.
//
// The status of entries (CTA_STATUS) is no part of the filter, though it would
// tell those that nf_tables or iptables have translated: IPVS does not set it.
//
// Source: include/uapi/linux/netfilter/nfnetlink_conntrack.h and
// net/netfilter/nf_conntrack_netlink.c of the kernel.
package conntrack
