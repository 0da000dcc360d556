// SPDX-License-Identifier: Apache-2.0

// Package forward measures what the fast path gains for connections to a
// Service, and what it costs short ones.
//
// The picture is KEP-4963's: a Service with one backend, a client pod, and
// between them one node that forwards, or two. Nodes and pods are network
// namespaces (package lab), the Service is programmed by package
// internal/dataplane/nftables as it is on a node, and package fastpath is what makes
// connections skip the stack.
//
// [Throughput] measures a TCP stream (iperf3), datagrams a second and the cost
// of forwarding one packet; [CRR] connections that carry one request each.
// Everything is measured with every setting of the fast path (see [Settings]), in
// turns: a round is one turn of each setting, in an order that changes from round
// to round. Values are compared with those of "off" in the same round, so that
// what disturbs the machine for longer than a turn disturbs both sides.
//
// # Cost of a packet
//
// A process on one processor sends small datagrams as fast as it can. In this
// laboratory, whatever becomes of a packet happens on the sender's processor,
// before the next one is sent or soon after; so the time for a packet is all the
// processor's. Batches of datagrams that cross the node, with the fast path or
// without, and are dropped as they arrive in the server's pod, alternate with batches
// that are dropped as they arrive on the node. The difference is what it takes to
// forward a packet, the second link included. Others are handed over to the second
// link as they are; what is left is the path itself: on the slow path connection
// tracking, address translation, routing and all hooks, on the fast path a look-up in
// the flowtable and the rest of what it does.
package forward
