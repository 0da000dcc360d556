// SPDX-License-Identifier: Apache-2.0

// Package socket chooses the endpoint when a process of the node or of one of its pods connects to
// a Service by TCP, so that no packet of the connection is translated.
//
// BPF programs (connect.c) at a cgroup replace the destination of connect(), and have
// getpeername() return the Service's address. [Balancer] is a second consumer of the changes that
// a dataplane programs. It fills maps from them:
//
//	frontends       10.96.0.20 . 80        ->  pool 2; pool 0 leaves connections to the dataplane
//	pools           pool 2                 ->  3 slots, at random or in turn
//	endpoints       pool 2 . slot 0        ->  10.244.1.7 . 8080
//	node_addresses  192.168.0.1            ->  NodePorts, which are frontends at 0.0.0.0 and [::], or nothing
//	lease                                  ->  the time until which the programs act
//	namespaces      cookie                     of the node and its pods
//	peers           of a socket            ->  the frontend that it has connected to
//
// Where the program has no answer it changes nothing, and the dataplane translates the connection
// as always. These are left to it: UDP and SCTP; frontends with session affinity or source ranges;
// the algorithms Maglev and least connections; pools without endpoints; loopback and link-local
// addresses of the node; the unspecified address, which means the client itself; ClusterIPs that an interface of the
// node has, as with NodeLocal DNSCache; sockets that are bound to a port, which another one may have to the endpoint.
//
// A client on the node is never traffic from outside, so desired.Frontend.Pool has the endpoints
// for it, by the traffic policies and topology hints. The packets are not masqueraded: they leave by
// the route to the endpoint, with the address of the pod, or the node's for that route.
//
// # Whose connections
//
// The programs run for all processes in the cgroup, which is the root of all cgroups. They act only on
// sockets in network namespaces that are known, by a cookie that the kernel never uses again: that of
// the node, and those of pods, which container runtimes mount in [PodNamespaces]. A container of
// Docker, a container in a pod that has made another namespace, and the pods of a cluster within a pod
// are not known, as they may have a dataplane of their own with the same addresses. With
// [Options.Selected], a pod is known only if it has an address in desired.DirectIPs.
//
// # Changes and restarts
//
// Apply writes only the elements that differ: slots first, then the number of slots. Pools have numbers
// that are not used again. Reconcile loads the programs anew, with maps for the whole content,
// and replaces each attached program at once. The links are pinned in a folder of /sys/fs/bpf, by the
// network namespace, with peers and the counter. If the process ends they remain, and the next one adopts them. They act
// only while the [Lease] lasts, which Run renews. So they do not matter where Slipstream is not any more. If Reconcile fails, the programs are detached.
//
// Whoever has to remove them may not see the pins, and may have no rights. So the programs tell each process in the
// node's network namespace that they are attached, by a UDP socket's connect(), and [Remove] fails while they do.
//
// The programs need cgroup v2 and Linux 5.14 (SO_NETNS_COOKIE). The object files are made from
// connect.c by "go generate" with clang and llvm of Debian 12 (version 14).
package socket

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -go-package socket -target bpfel,bpfeb -type address -type pool -type slot -cflags "-O2 -mcpu=v3 -Wall -Wextra -Werror -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu" program connect.c
//go:generate rm program_bpfel.go program_bpfeb.go
