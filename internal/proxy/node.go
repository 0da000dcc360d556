// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// nodeWait is how long this node's object may be missing before a warning. kube-proxy waits
// for the same time.
const nodeWait = 30 * time.Second

// nodeObject records whether this node's object exists and has the required fields. Only the
// loop uses it. Its zero value stands for an object that has never existed.
type nodeObject struct {
	exists   bool
	podCIDRs bool // it has or had podCIDRs, which package desired keeps

	missing    <-chan time.Time // delivers when it has been missing for too long; nil while it exists
	warned     bool             // that it is missing
	warnedPods bool             // that it has no podCIDRs
}

// watchNode checks this node's object once the source has delivered its initial content.
func (p *Proxy) watchNode() {
	n := &p.node
	if !p.synced {
		return
	}
	if p.options.PodCIDRs && n.exists && !n.podCIDRs && !n.warnedPods {
		n.warnedPods = true
		p.log.Info("The Node has no spec.podCIDRs: until it has, no traffic counts as that of this node's pods (detectLocalMode NodeCIDR)", "node", p.options.NodeName)
	}
	switch {
	case n.exists && n.missing != nil:
		if n.warned {
			p.log.Info("The Node object is there", "node", p.options.NodeName)
		}
		n.missing, n.warned = nil, false
	case !n.exists && n.missing == nil && p.options.NodeRequired:
		n.missing = time.After(p.options.NodeWait)
	}
}

// warnNodeMissing warns that this node's object does not exist, and lists the consequences.
func (p *Proxy) warnNodeMissing() {
	p.node.warned = true
	var without []string
	if len(p.state.NodePortAddresses()) == 0 {
		without = append(without, "NodePorts answer nowhere")
	}
	if !p.NodeEligible() {
		without = append(without, "load balancers do not send traffic here")
	}
	if p.options.PodCIDRs && !p.node.podCIDRs {
		without = append(without, "no traffic counts as that of this node's pods")
	}
	if len(without) == 0 {
		without = append(without, "its last version is used")
	}
	err := fmt.Errorf("there is no Node %q, which is the name of this node (hostnameOverride, --hostname-override, or the host's name). Until it exists: %s",
		p.options.NodeName, strings.Join(without, "; "))
	if p.options.Events == nil {
		p.log.Error(err, "This node's object is missing")
		return
	}
	p.warn("NodeMissing", err) // also in the log
}

// taintToBeDeleted is the cluster autoscaler's taint on a node that it is about to delete.
const taintToBeDeleted = "ToBeDeletedByClusterAutoscaler"

// noteNode records this node's object, or its deletion. A deletion does not affect whether the
// node is eligible, as in kube-proxy: an object has the deletion timestamp before.
func (p *Proxy) noteNode(o *corev1.Node, exists bool) {
	p.node.exists = exists
	if !exists {
		return
	}
	p.node.podCIDRs = p.node.podCIDRs || len(o.Spec.PodCIDRs) > 0
	p.eligible.Store(o.DeletionTimestamp.IsZero() &&
		!slices.ContainsFunc(o.Spec.Taints, func(t corev1.Taint) bool { return t.Key == taintToBeDeleted }))
}

// NodeEligible reports whether load balancers should send traffic to this node: its object is
// not being deleted and does not have the cluster autoscaler's taint. It is safe for
// concurrent use.
func (p *Proxy) NodeEligible() bool { return p.eligible.Load() }
