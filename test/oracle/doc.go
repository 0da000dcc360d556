// SPDX-License-Identifier: Apache-2.0

// Package oracle compares Slipstream with upstream kube-proxy in nftables mode.
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
//	make oracle SEED=1000 CLUSTERS=100               # seeds 1000 to 1099
//	go test . -run Oracle -clusters 1 -seed 1042 -v  # one of them again
//	go test . -run Oracle -against kube-proxy        # kube-proxy with itself
//
// A cluster takes some seconds; with many, give go test a -timeout. A difference is
// believed only when it is still there at a second and a third, more careful look; what
// was not is mentioned in the log as passing. It is due to a slow machine.
//
// It needs root, nft and etcd (test/deps.sh installs both). kube-apiserver and kube-proxy
// are built when they are first needed, which takes minutes; "go run ./build" does
// nothing else.
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
