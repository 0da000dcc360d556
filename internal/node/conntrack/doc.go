// SPDX-License-Identifier: Apache-2.0

// Package conntrack deletes entries of the kernel's connection tracking of stale UDP and SCTP
// flows: to an endpoint that was removed, or untranslated because the frontend had no endpoint
// when they began. [desired.StaleFlows] describes them.
//
// Rules see only the first packet of a flow, so programming does not redirect existing flows.
// A UDP client that keeps its source port never begins a new flow: the entry lives as long as
// the client sends. Entries of TCP remain: its connections end, and their clients notice. They are
// deleted only where the endpoint's Node was deleted, and where a SYN was sent while rules were
// missing: the client's next SYN is then translated.
//
// # Cost
//
// To find the flows of a backend, the kernel has to walk its table, with the entries of all
// network namespaces. Reporting an entry and parsing it costs far more than skipping it
// (BenchmarkClean). So the request has one filter (CTA_FILTER, Linux 5.8) for what all stale
// flows have in common of protocol, original destination and source of replies. For one
// removed backend or one new frontend, the filter matches exactly its entries; for several,
// at worst those of their protocol.
//
// The kernel refuses such a filter for both address families at once
// (ctnetlink_parse_tuple_filter; TestRefusedFilter). So one [Conn.Clean] takes one dump for
// each family that has stale flows, as kube-proxy does. Only flows of UDP and SCTP without a
// common address take two dumps in a family, because a filter for both would match everything.
//
// Every reported entry is checked again. So a kernel without filters only costs time. But
// some kernels have filters that hide entries (see abilities). So a [Conn] first probes
// filters, with its own entry between unused addresses.
//
// The filter does not use IPS_DST_NAT of an entry's status (CTA_STATUS), because IPVS does not set
// it.
//
// Source: include/uapi/linux/netfilter/nfnetlink_conntrack.h and
// net/netfilter/nf_conntrack_netlink.c of the kernel.
package conntrack
