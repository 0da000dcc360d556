// SPDX-License-Identifier: Apache-2.0

// Package scale measures Service proxies on a real Kubernetes API, from outside: objects
// are written to kube-apiserver, connections are made to Services.
//
//	bench scale --services 10000 --endpoints 10
//
// One kube-apiserver with its etcd is filled with Services. Then each subject runs on a
// node of its own, one after the other: Slipstream and upstream kube-proxy, each in its
// nftables and its iptables mode, with the configuration that kubeadm writes. One machine
// has the addresses of all pods and answers every connection with the address that it was
// made to, so any Service can be connected to, and the answer says which endpoint
// it was. The iptables modes use the commands of the legacy variant, unless --iptables says
// otherwise.
//
// The measurements of each subject:
//
//   - start: from the start of the process on a node without any rules until a new
//     connection to each Service of a random sample is answered.
//   - change: from the API server's reply to a change of an EndpointSlice until a new
//     connection reaches the new endpoint. The pause before the next change is longer than
//     the subject's minimum time between two syncs, so that no change waits for the one
//     before it. The Services that are changed have one endpoint, so that every connection
//     shows it.
//   - processor time for each of these changes, beyond that of the process at rest: user and
//     system, of the process and of commands it runs (nft, iptables-restore). The kernel's
//     later work on its own threads, such as freeing memory, is not included. At rest is ten
//     seconds after the start.
//   - burst: endpoints of many Services are replaced as fast as the API server accepts it;
//     from the last reply until the last change has its effect.
//   - full and partial syncs: the proxy's metrics in the end.
//   - connections that failed: the share without an answer within a second, of 20 a second to
//     Services of the sample, from the start to the end of the bursts.
//   - peak resident memory (VmHWM) of the process, after the start and in the end.
//
// Connections are tried all the time, with pauses of 0.1 ms, or of a thousandth of the time
// that has passed so far if that is more (at most 10 ms).
// The other commands are in rules.go, latency.go and fleet.go.
package scale
