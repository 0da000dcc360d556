// SPDX-License-Identifier: Apache-2.0

// Package nfnl speaks nf_tables over netlink, as far as a Service proxy needs
// it and as fast as the kernel takes it.
//
// A [Batch] is one nf_tables transaction in the kernel's own encoding: it is
// appended to, sent in one system call by [Conn.Commit], and takes effect as a
// whole or not at all. Map and set elements, of which a proxy has hundreds of
// thousands, go straight from key and value into the buffer; nothing is
// allocated for an element. Reading back ([Conn.Elements], [Conn.Rules] and the
// others) walks the kernel's answer in place in the same way.
//
// What it does not do: it is no general nftables library. Expressions come
// from github.com/google/nftables/expr, the socket from
// github.com/mdlayher/netlink; this package is the part between them whose
// cost follows the size of the cluster.
//
// Source: include/uapi/linux/netfilter/nf_tables.h and nfnetlink.h of the
// kernel; all of it works from Linux 5.13 on.
package nfnl
