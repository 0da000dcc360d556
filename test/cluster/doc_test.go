// SPDX-License-Identifier: Apache-2.0

// Package cluster tests Slipstream end to end, on a real Kubernetes API: bin/slipstream as
// it is in this checkout, etcd, kube-apiserver and kube-proxy of the versions that
// test/cluster/oracle/tools/go.mod requires, kube-apiserver of the oldest release that Slipstream
// supports (test/cluster/oracle/oldest), Kubernetes' own endpointslice controller (go.mod), and nodes
// and pods that are network namespaces.
//
//	go test -timeout 20m ./...                     # in this folder; root
//	go test . -run TestSwap -v                     # one test
//	go test . -proxy kube-proxy-nftables           # the same of kube-proxy: are the tests right?
//	go test . -mode iptables                       # Slipstream in another mode
//	make test-cluster-ipvs                         # TestSwap in IPVS mode, on the User Mode Linux kernel
//	go test . -run TestUDP -logs /tmp/somewhere    # keeps the proxies' logs and configuration
//
// Tests observe what clients observe: connections are made from pods, from nodes and
// from outside, new ones all the time and some that stay, while something changes.
//
//	services_test.go  selectors, labels, readiness; Services of one family and of both
//	rolling_test.go   rolling updates under load, terminating endpoints
//	udp_test.go       the pod behind a UDP client is replaced
//	nodes_test.go     from node to node, a lost node, a Node object that comes late
//	policies_test.go  external and internal traffic policy Local, health checks
//	swap_test.go      kube-proxy replaced by Slipstream and back, restarts
//	cleanup_test.go   "kube-proxy --cleanup"
//	faults_test.go    an API server that hangs, is slow or down, is old or does not stream
//	                  lists, 410 Gone, a revoked token, a restored backup of etcd
//	surface_test.go   metrics and Events, beside kube-proxy's
//	optout_test.go    reading what can opt out of the fast path, with and without the right
//	tenants_test.go   a hostile tenant, and a victim whose Services change: attacks_test.go has the attacks
//
// Proxies get the configuration file that kubeadm writes for kube-proxy, and may do what
// the ClusterRole system:node-proxier allows, no more.
//
// All tests share one cluster, as it takes seconds to start, and run one after the other,
// but for those that need another API server. A test's objects are deleted when it ends.
//
// # Packages
//
//	site     the cluster: control plane and nodes, and the objects of these
//	proxies  Slipstream and kube-proxy as processes on nodes
//
// etcd, kube-apiserver and kube-proxy come from the module test/cluster/oracle.
package cluster
