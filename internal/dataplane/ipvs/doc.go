// SPDX-License-Identifier: Apache-2.0

// Package ipvs is the dataplane of IPVS mode: the kernel's IP Virtual Server chooses the
// backends, with its schedulers, as in kube-proxy's IPVS mode.
//
// # Three kinds of objects
//
//   - A virtual server for each frontend that has one ([desired.Frontend.IPVS]; a NodePort has a
//     frontend for each address of the node), with the backends of its pool as destinations.
//   - ClusterIPs and the IPs of load balancers on the dummy interface kube-ipvs0, unless the node
//     has them anyway. IPVS sees a packet only if the kernel takes its destination for the node's.
//   - A table for everything that IPVS does not do: masquerading, source ranges, the verdict of
//     empty pools, unknown ports and addresses. It is that of nftables mode (package nftables), and
//     gets the same changes. A pool of IPVS has no endpoints there, and leaves its packets to IPVS.
//
// A frontend with a pool for traffic from outside (externalTrafficPolicy: Local) has two
// pools. Its virtual server has the local one. The other, for connections that start on this
// node, is served by the table, as in nftables mode; IPVS cannot tell the two apart by
// address. External IPs that no interface of the node has are served by the table alone: they may be
// other machines' addresses. Package desired decides all this, in its file ipvs.go.
//
// # Order
//
// IPVS has no transactions. A change first adds virtual servers and destinations, then takes
// effect in the table, atomically, then changes addresses, and at last removes
// destinations and virtual servers. So a new connection finds a destination at every moment.
// Reconcile adds addresses before the table, which may be that of another mode before.
//
// # Leaving destinations
//
// IPVS translates each packet of a connection, and drops the packets of a destination that it
// does not have. So a destination that leaves its pool gets weight 0 and is
// deleted when its connections have ended, or after [drainTimeout]. If it returns before, it
// gets its weight back. A UDP destination is deleted when its endpoint no longer serves
// ([dataplane.FlowEnder]), so that its clients get another (net.ipv4.vs.expire_nodest_conn).
package ipvs
