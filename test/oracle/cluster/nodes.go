// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"slices"

	"github.com/slipstream-proxy/slipstream/test/oracle/stage"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// zones are those that nodes are in and hints are for. No node is in zone-c.
var zones = []string{"zone-a", "zone-b", "zone-c"}

// nodes are n1, n2 and n3, with random zones. The first address of a Node decides which
// family is the cluster's primary one.
func (g *generator) nodes() []*corev1.Node {
	primary := 0
	if g.once(4) {
		primary = 1
	}
	var all []*corev1.Node
	for _, name := range []string{stage.Node1, stage.Node2, stage.Node3} {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}}
		if !g.once(6) {
			n.Labels[corev1.LabelTopologyZone] = pick(g, zones[:2]...)
		}
		for _, a := range stage.NodeAddress(name) {
			n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a.String()})
		}
		cidrs := stage.PodCIDR(name)
		n.Spec.PodCIDRs = texts(cidrs[:]...)
		if primary == 1 {
			slices.Reverse(n.Status.Addresses)
			slices.Reverse(n.Spec.PodCIDRs)
		}
		n.Spec.PodCIDR = n.Spec.PodCIDRs[0]
		all = append(all, n)
	}
	return all
}
