// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
)

// nodeWait is how long this node's object may be missing until an administrator is
// told. kube-proxy waits as long for it.
const nodeWait = 30 * time.Second

// nodeObject knows whether this node's object is there, and has what is needed of it.
// Its zero value says that it never was. It is the loop's alone.
type nodeObject struct {
	there    bool
	podCIDRs bool // it has or has had some; desired keeps those

	missing  *time.Timer // since the object is missing; nil while it is not
	told     bool        // that it is missing
	toldPods bool        // that it has no podCIDRs
}

// note takes this node's object, or its end.
func (n *nodeObject) note(o *corev1.Node, there bool) {
	n.there = there
	n.podCIDRs = n.podCIDRs || there && len(o.Spec.PodCIDRs) > 0
}

// overdue delivers once when the object has been missing for too long.
func (n *nodeObject) overdue() <-chan time.Time {
	if n.missing == nil {
		return nil
	}
	return n.missing.C
}

// watchNode looks for what this node's object lacks, once the source has delivered
// what there was.
func (p *Proxy) watchNode() {
	n := &p.node
	if !p.synced {
		return
	}
	if p.options.PodCIDRs && n.there && !n.podCIDRs && !n.toldPods {
		n.toldPods = true
		klog.InfoS("The Node has no spec.podCIDRs: until it has, no traffic counts as that of this node's pods (detectLocalMode NodeCIDR)", "node", p.options.NodeName)
	}
	switch {
	case n.there && n.missing != nil:
		n.missing.Stop()
		if n.told {
			klog.InfoS("The Node object is there", "node", p.options.NodeName)
		}
		n.missing, n.told = nil, false
	case !n.there && n.missing == nil && p.options.NodeRequired:
		n.missing = time.NewTimer(p.options.NodeWait)
	}
}

// tellNodeMissing tells an administrator that there is no object of this node, and
// what does not work for want of it.
func (p *Proxy) tellNodeMissing() {
	p.node.told = true
	var without []string
	if len(p.state.NodePortAddresses()) == 0 {
		without = append(without, "NodePorts answer nowhere")
	}
	if !p.NodeEligible() {
		without = append(without, "load balancers are told not to send traffic here")
	}
	if p.options.PodCIDRs && !p.node.podCIDRs {
		without = append(without, "no traffic counts as that of this node's pods")
	}
	if len(without) == 0 {
		without = append(without, "what it said last holds")
	}
	err := fmt.Errorf("there is no Node %q, by which name this proxy knows its node (hostnameOverride, --hostname-override, or the host's name). Until there is: %s",
		p.options.NodeName, strings.Join(without, "; "))
	if p.options.Events == nil {
		klog.ErrorS(nil, err.Error())
		return
	}
	p.warn("NodeMissing", err) // also in the log
}

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
