// SPDX-License-Identifier: Apache-2.0

// Command scale measures Service proxies on a real Kubernetes API, seen from outside:
// objects go into kube-apiserver, connections come out.
//
//	go run ./scale -services 10000 -endpoints 10
//
// One kube-apiserver with its etcd is filled with Services, and then each subject is run
// on a node of its own, one after the other: Slipstream and upstream kube-proxy, each in its
// nftables and its iptables mode, with the configuration that kubeadm writes. All ranges
// of pods' addresses belong to one machine that answers every connection with the address
// that it came to (pods.go), so any Service can be connected to, and the answer says which
// endpoint it was.
//
// Modes that use the iptables commands get those of the legacy variant, unless -iptables
// says otherwise. A node with such a mode bears the sign of its variant that a kubelet
// leaves (iptables.go).
//
// What is measured of each subject:
//
//   - start: from the start of the process on a node without any rules until a new
//     connection to each Service of a random sample is answered (start.go).
//   - change: from the API server's reply to a change of an EndpointSlice until a new
//     connection reaches the new endpoint. The next change comes after a pause that is
//     longer than the subject's minimum time between two syncs, so that a change is not
//     measured waiting for the one before it. The Services that are changed have one
//     endpoint, so that every connection tells (changes.go).
//   - processor time for each of these changes: user and system, of the process and of
//     commands it runs (nft, iptables-restore). What the kernel does later on threads of
//     its own, such as freeing memory, is in nobody's.
//   - burst: endpoints of many Services are replaced as fast as the API server takes it;
//     measured is from the last reply until the last change has its effect (burst.go).
//   - peak resident memory (VmHWM) of the process, when it has started and in the end; and
//     the peak of the commands it runs, by looking every 50 ms.
//
// Connections are tried all the time, with pauses of 0.1 ms, or of a thousandth of the
// time that it has taken so far if that is more (at most 10 ms).
//
// # Rules
//
//	go run ./scale rules -services 10,100,1000,10000
//
// counts the iptables rules that the kernel executes for a new connection, with more and
// more Services in the same API server: those of Slipstream's iptables mode and of
// kube-proxy's, on a node each (rules.go). When Services answer and the subject has
// nothing more to do, it is killed, so that counters change only by what is counted. Then a
// pod on the node sends the first packet of a connection, to one Service of a random
// sample after the other, and rules and counters are read before and after it. Package
// test/rulewalk finds the packet's way through all tables, PREROUTING to POSTROUTING: a rule
// was executed if the packet came as far as there in its chain, whether the rule matched
// or not. The way has to end where the packet has arrived (first.go). Of kube-proxy,
// the Services that come first and last in its list (KUBE-SERVICES) are counted too.
package main
