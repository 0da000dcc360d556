// SPDX-License-Identifier: Apache-2.0

// Package oracle compares Slipstream with upstream kube-proxy, in nftables mode, with both
// variants of the iptables commands in iptables mode, and in IPVS mode.
//
// Both are given the same random clusters, through a real kube-apiserver: Services of
// all types, EndpointSlices, Nodes, and settings. Each runs on a stage of its own, a lab
// of network namespaces with the same machines and addresses. Then connections are made
// from pods, from the node and from outside to all addresses and ports of a Service, and
// to some near them. Both have to give the same results: the servers that answer, the
// source addresses that these see, and the errors. A difference is a bug of Slipstream,
// or a documented one: known_test.go lists those, each with its row in docs/services.md.
//
//	make oracle                                      # a few clusters, always the same ones
//	make oracle SEED=1000 CLUSTERS=100               # seeds 1000 to 1099, half of them in nftables mode
//	make oracle MODE=iptables-nft                    # in one mode: nftables, iptables-legacy, iptables-nft
//	go test . -run Oracle -mode iptables-nft -clusters 1 -seed 1042 -v    # one of them again
//	make oracle-ipvs SEED=1000 CLUSTERS=10           # in IPVS mode, on the User Mode Linux kernel
//	go test . -run Oracle -against kube-proxy        # kube-proxy with itself
//	go test . -run Releases -seed 7                  # kube-proxy with that of the previous release
//
// A seed makes the same cluster in all modes, except for a few settings of iptables mode.
// One of these is a firewall on the node that accepts nothing by default, which tests what
// a proxy accepts.
//
// A cluster takes some seconds; with many, give go test a -timeout. A difference counts
// only if a second and a third, more careful look confirm it. Others are logged as
// passing: they come from a slow machine or, with session affinity in iptables mode, from
// the kernel, which remembers only the last 100 clients of an endpoint.
//
// It needs root, nft, and iptables for the modes of iptables and IPVS; test/deps.sh installs
// both. Few machines have IPVS, so -mode all is without it.
// etcd, kube-apiserver and kube-proxy are built when they are first needed, which takes
// minutes; "go run ./build tools previous" does nothing else.
//
// # Folders
//
//	tools     the versions of what is compared with: a module of its own
//	previous  the previous release's: the same
//	oldest    kube-apiserver of the oldest release that Slipstream supports: the same
//	upstream  builds the programs, and runs etcd and kube-apiserver as child processes
//
// stage_test.go has the machines, cluster_test.go random clusters, plan_test.go what is looked at, and look_test.go how:
// which servers answer which clients, and the source addresses that they see.
package oracle
