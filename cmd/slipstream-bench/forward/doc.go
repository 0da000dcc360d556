// SPDX-License-Identifier: Apache-2.0

// Package forward measures what the fast path gains for connections to a Service, and
// what it costs short ones.
//
// The topology is KEP-4963's: a Service with one backend, a client pod, and one or two
// nodes that forward between them. Nodes and pods are network namespaces (package lab).
// Package internal/dataplane/nftables programs the Service as on a real node, and package
// internal/fastpath offloads connections.
//
// [Throughput] measures a TCP stream (iperf3), datagrams a second and the cost of
// forwarding one packet. [CRR] measures connections that carry one request each. Each
// round has a turn of each of the [Settings], and values are compared with those of "off"
// in the same round.
//
// # Cost of a packet
//
// A process on one processor sends small datagrams as fast as it can. In this topology
// all work for a packet is done on the sender's processor, before the next packet is
// sent or soon after, so the time for a packet is its processor time. Batches of
// datagrams that cross the node and are dropped as they arrive in the server's pod
// alternate with batches that are dropped as they arrive on the node. The difference is
// the cost of forwarding a packet, the second link included. Other batches are redirected
// to the second link as they arrive on the node. The difference to those is the cost of
// the path alone: connection tracking, address translation, routing and all hooks on the
// slow path, a flowtable look-up and the rewriting of the packet on the fast path.
package forward
