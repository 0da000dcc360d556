// SPDX-License-Identifier: Apache-2.0

// Package upstream runs what Kubernetes itself is made of, as child processes in
// network namespaces: etcd, kube-apiserver and kube-proxy.
//
// etcd is Debian's (package etcd-server); the other two are built from the Go module
// k8s.io/kubernetes, in the version that ../tools/go.mod requires, when they are first
// needed. See [Binary].
package upstream
