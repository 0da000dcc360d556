// SPDX-License-Identifier: Apache-2.0

// Package kubelets is a cluster with everything but a Service proxy: the nodes of a site.Site each
// have a containerd and a kubelet, there are kube-controller-manager, kube-scheduler and CoreDNS, and pods
// are real ones. README.md says how to use it.
package kubelets
