// SPDX-License-Identifier: Apache-2.0

// Package oracle compares Slipstream with upstream kube-proxy, in nftables mode and, with
// both variants of the iptables commands, in iptables mode.
//
// Both are given the same random clusters, through a real kube-apiserver: Services of
// all types, EndpointSlices, Nodes, and settings. Each runs on a stage of its own, a lab
// of network namespaces with the same machines and addresses. Then connections are made
// from pods, from the node and from outside to everything that a Service has, and to
// some that it has not: who answers, seeing which source address, or what happens
// instead, has to be the same. Where it is not, it is a bug of Slipstream's, or a row in
// docs/services.md says why; those are listed in known_test.go.
//
//	make oracle                                      # a few clusters, always the same ones
//	make oracle SEED=1000 CLUSTERS=100               # seeds 1000 to 1099, half of them in nftables mode
//	make oracle MODE=iptables-nft                    # in one mode: nftables, iptables-legacy, iptables-nft
//	go test . -run Oracle -mode iptables-nft -clusters 1 -seed 1042 -v    # one of them again
//	go test . -run Oracle -against kube-proxy        # kube-proxy with itself
//
// A seed makes the same cluster in all modes, but for a few settings that there are in
// iptables mode alone. One is a firewall on the node, which lets in and forwards only what
// somebody accepts: what a proxy accepts shows then.
//
// A cluster takes some seconds; with many, give go test a -timeout. A difference is
// believed only when it is still there at a second and a third, more careful look; what
// was not is mentioned in the log as passing. It is due to a slow machine; or, where it is
// about session affinity in iptables mode, to the kernel, which remembers the last 100
// clients of an endpoint only.
//
// It needs root, nft, etcd, and iptables for the mode of that name; test/deps.sh installs
// all three. kube-apiserver and kube-proxy are built when they are first needed, which
// takes minutes; "go run ./build" does nothing else.
//
// # What is where
//
//	tools     the versions of what is compared with: a module of its own
//	program   programs in network namespaces
//	upstream  etcd, kube-apiserver and kube-proxy as child processes
//	cluster   random clusters
//	stage     the machines
//	observe   who reaches whom, and as whom
package oracle
