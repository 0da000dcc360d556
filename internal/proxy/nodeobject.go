// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"fmt"
	"strings"
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
