// SPDX-License-Identifier: Apache-2.0

// Package deploy tests what is in deploy/: that the kustomize base and the Helm chart
// say the same, that a real kube-apiserver takes it, and that the pods work, and
// need all rights that they ask for.
//
//	go test .       # root; kube-apiserver and etcd are built when they are first needed
//
// The DaemonSet's container is run as the manifest says, without an engine: the image's
// root file system, read-only, with the pod's volumes, its capabilities and no others,
// and the kernel's settings read-only, as engines have them. Where podman and runc are
// installed, the image is built and run with them too.
package deploy
