// SPDX-License-Identifier: Apache-2.0

// Package ebpf is an engine of the fast path for kernels without flowtables: a BPF program at the
// ingress of interfaces forwards packets of established connections, and one at their egress learns these.
//
// The rules of package fastpath decide which connections are offloaded, as for the flowtable.
// Instead of the statement "flow add", the last rule is
//
//	meta priority set meta priority ^ 0x13630000
//
// The upper half of a packet's priority is a class of a queueing discipline, and 4963 one that nobody has. The base
// chain is in the hook postrouting after all NAT. So the program learn at the egress of interfaces sees the class, takes it
// away, and looks up the conntrack entry by the packet's headers, reversed. It writes two
// flows to the map, one for each direction: the headers before and after translation, and the
// interfaces. UDP is offloaded with that. The flows of a TCP connection wait: a ring buffer tells [Engine], which has
// conntrack accept any sequence number and ends their wait. A program cannot do that. Packets would otherwise be invalid
// for conntrack when they return to the slow path.
//
// The program (flow.c) looks up each packet by addresses, protocol and ports. Packets without a
// flow, and those that need more than forwarding, take the slow path: fragments, IP options and
// extension headers, packets larger than the MTU, with a TTL of 1, with a VLAN tag, ICMP, SYN. A FIN or RST ends the flow
// and takes the slow path if its number is in the window of the receiver, which the program follows. Others are forgeries,
// most likely. Conntrack would believe them, so they are forwarded, or dropped if they come from another interface or would take
// the slow path. Those from interfaces that take no part, with or without Ethernet header, meet the program guard there.
//
// The kernel reuses elements of the map without a grace period. So the program works with a copy, which a seal over all
// that does not change says to be of one flow, whatever the order in which processors see writes. Neither it nor [Engine]
// replaces an element by that of another connection. There is no lock on a packet's way.
//
// Ten times a second the program checks a flow that is in use: that its interfaces take part, that the conntrack entry
// exists, and that the route leads to the interface that the slow path used. Otherwise it ends both flows
// of the connection, and the packet takes the slow path. If there was no such route from the start, it refuses the
// connection for 8 seconds, and longer each time. The check sets the timeout of the entry
// like a packet on the slow path does. So the kernel keeps flows true without this process, and an
// entry cannot expire under a busy connection. The program acts only while the Engine renews its lease. A flow that is idle is deleted after 30 seconds;
// its entry stays.
//
// tcx comes before filters of tc and chains of nf_tables at the ingress (sch_handle_ingress, nf_ingress),
// and those at the egress see packets without conntrack entry and mark. So package fastpath leaves out the
// interfaces where other programs have such (Engine.Filters).
//
// Packets to a pod on this node go directly to the pod's end of the veth pair (bpf_redirect_peer),
// unless the node's end has a queueing discipline or a program of tcx at the egress, which would be
// bypassed. The others leave by
// the neighbour table (bpf_redirect_neigh) and pass the egress of the interface. A kernel
// without BPF_FIB_LOOKUP_SKIP_NEIGH (before Linux 6.3, unless it was backported) refuses the lookup of the
// route for these. That ends the flow, and the connection stays on the slow path.
//
// The map and the links of the program to interfaces are pinned in a folder of /sys/fs/bpf, by the
// network namespace. If the process ends unexpectedly they remain, and the next one adopts them. Nothing is learned
// meanwhile: the links at the egress are not pinned.
//
// Without tcx (Linux before 6.6) the program is a filter of tc at the qdisc clsact, which remains
// without a pin. The qdisc is never removed, as other programs may use it.
//
// The program needs Linux 6.1 with CONFIG_DEBUG_INFO_BTF, for the functions of conntrack
// (net/netfilter/nf_conntrack_bpf.c, Linux 6.0). The object
// files are made from flow.c by "go generate" with clang and llvm of Debian 12 (version 14).
package ebpf

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -go-package ebpf -target bpfel,bpfeb -type tuple -type flow -cflags "-O2 -Wall -Wextra -Werror -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu" program flow.c
//go:generate rm program_bpfel.go program_bpfeb.go
