// SPDX-License-Identifier: Apache-2.0

// Package nfnl implements the part of nf_tables over netlink that a Service proxy needs, with low overhead.
//
// A [Batch] is one nf_tables transaction in the kernel's encoding. [Conn.Commit] sends it in one system call, and it
// takes effect atomically or not at all. Elements of maps and sets, of which a proxy has hundreds of thousands, are
// encoded directly into the buffer without an allocation. Functions that read ([Conn.Elements], [Conn.Rules] and
// others) decode the kernel's answer in place.
//
// This is not a general nftables library. Expressions come from
// github.com/google/nftables/expr, and the socket from github.com/mdlayher/netlink.
//
// Source: include/uapi/linux/netfilter/nf_tables.h and nfnetlink.h of the kernel; all of it works from Linux 5.13 on.
package nfnl
