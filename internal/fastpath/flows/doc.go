// SPDX-License-Identifier: Apache-2.0

// Package flows lists the connections that the kernel's flowtables forward, from
// conntrack over netlink: whoever put them there.
//
// An entry has the status OFFLOAD while a flowtable has its flow, and HW_OFFLOAD
// besides while network hardware does (IPS_OFFLOAD, IPS_HW_OFFLOAD). What there is
// to know of it is who connected to what, who answers, and how much has been sent
// since. The counters go on while the connection is offloaded if the flowtable has
// the flag counter, as ours has. When it began is known where the sysctl
// net.netfilter.nf_conntrack_timestamp was on by then. The kernel does not say when
// it was offloaded, nor for how long the entry will live.
//
// Source: include/uapi/linux/netfilter/nfnetlink_conntrack.h and
// net/netfilter/nf_conntrack_netlink.c of the kernel.
package flows
