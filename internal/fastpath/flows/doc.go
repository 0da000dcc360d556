// SPDX-License-Identifier: Apache-2.0

// Package flows lists the connections that are offloaded to any flowtable of the kernel, from
// conntrack over netlink.
//
// An entry has the status OFFLOAD while a flowtable has its flow, and HW_OFFLOAD while network
// hardware forwards it (IPS_OFFLOAD, IPS_HW_OFFLOAD). Its counters continue if the flowtable
// has the flag counter. Its start is known if the sysctl
// net.netfilter.nf_conntrack_timestamp was on. The kernel does not say when a connection was
// offloaded, nor the timeout of its entry.
//
// Source: include/uapi/linux/netfilter/nfnetlink_conntrack.h and
// net/netfilter/nf_conntrack_netlink.c of the kernel.
package flows
