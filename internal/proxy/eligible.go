// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"slices"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
)

// taintToBeDeleted is what the cluster autoscaler puts on a node before it takes
// the node away.
const taintToBeDeleted = "ToBeDeletedByClusterAutoscaler"

// eligibility is what the Node object says about whether load balancers should
// send traffic here.
type eligibility struct {
	known   atomic.Bool // there is or has been a Node object
	leaving atomic.Bool // it says that the node is going to be deleted
}

// set takes this node's object. One that vanishes says nothing: that is how
// kube-proxy has it, and what is to be deleted has said so before.
func (e *eligibility) set(n *corev1.Node) {
	leaving := !n.DeletionTimestamp.IsZero() ||
		slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == taintToBeDeleted })
	e.leaving.Store(leaving)
	e.known.Store(true)
}

// NodeEligible says whether this node is there to stay, so that load balancers
// should send traffic to it: its object is not being deleted and does not have the
// cluster autoscaler's taint. It may be called by any goroutine.
func (p *Proxy) NodeEligible() bool {
	if !p.eligibility.known.Load() {
		return !p.options.NodeRequired
	}
	return !p.eligibility.leaving.Load()
}
