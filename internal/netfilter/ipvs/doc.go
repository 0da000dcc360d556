// SPDX-License-Identifier: Apache-2.0

// Package ipvs programs the kernel's IP Virtual Server (CONFIG_IP_VS, net/netfilter/ipvs)
// over generic netlink: virtual servers, their destinations and the connection timeouts of one
// network namespace. It has no policy.
//
// IPVS has no transactions: each [Request] takes effect on its own. [Conn.Execute] sends
// hundreds of requests in one system call and has only the last one acknowledged, so a
// destination costs about what the kernel needs for it. Failed requests are reported one by
// one.
//
// The messages are those of include/uapi/linux/ip_vs.h, version 1 of the family "IPVS". They
// have been the same since Linux 2.6.28; the address family of a destination is new in 3.18.
package ipvs
