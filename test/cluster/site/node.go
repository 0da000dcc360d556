// SPDX-License-Identifier: Apache-2.0

package site

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"

	"github.com/slipstream-proxy/slipstream/test/lab"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Node is a node of the cluster.
type Node struct {
	*lab.Node
	site   *Site
	number int
	pods   int // so far
}

// Machine makes node n<number>, from 1 to 189, of which the control plane does not know
// yet.
func (s *Site) Machine(number int) (*Node, error) {
	node, err := s.Lab.Node(fmt.Sprintf("n%d", number), lab.NodeOptions{
		Addresses: onFabric(10 + number),
		PodCIDRs: []netip.Prefix{
			netip.MustParsePrefix(fmt.Sprintf("10.244.%d.0/24", number)),
			netip.MustParsePrefix(fmt.Sprintf("fd00:244:%x::/64", number)),
		},
	})
	if err != nil {
		return nil, err
	}
	return &Node{Node: node, site: s, number: number}, nil
}

// Register makes the Node object, as the node's kubelet would.
func (n *Node) Register(ctx context.Context) error {
	object := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name:   n.Name(),
		Labels: map[string]string{corev1.LabelHostname: n.Name()},
	}}
	for _, c := range n.PodCIDRs() {
		object.Spec.PodCIDRs = append(object.Spec.PodCIDRs, c.String())
	}
	object.Spec.PodCIDR = object.Spec.PodCIDRs[0]
	nodes := n.site.Plane.Client.CoreV1().Nodes()
	object, err := nodes.Create(ctx, object, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	for _, a := range n.Addrs() {
		object.Status.Addresses = append(object.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a.String()})
	}
	object.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	_, err = nodes.UpdateStatus(ctx, object, metav1.UpdateOptions{})
	return err
}

// Unregister deletes the Node object.
func (n *Node) Unregister(ctx context.Context) error {
	return n.site.Plane.Client.CoreV1().Nodes().Delete(ctx, n.Name(), metav1.DeleteOptions{})
}

// Taint gives the Node object these taints, and no others.
func (n *Node) Taint(ctx context.Context, taints ...corev1.Taint) error {
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"taints": taints}})
	if err != nil {
		return err
	}
	_, err = n.site.Plane.Client.CoreV1().Nodes().Patch(ctx, n.Name(), types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// Idle makes a pod to connect from, of which the control plane does not know. The caller
// deletes it.
func (n *Node) Idle(name string) (*lab.Pod, error) {
	addrs, err := n.nextPod()
	if err != nil {
		return nil, err
	}
	return n.Node.Pod(name, addrs...)
}

// nextPod are addresses that no pod had before.
func (n *Node) nextPod() ([]netip.Addr, error) {
	n.pods++
	if n.pods > 250 {
		return nil, fmt.Errorf("node %s: no pod addresses are left", n.Name())
	}
	return []netip.Addr{
		netip.MustParseAddr(fmt.Sprintf("10.244.%d.%d", n.number, 1+n.pods)),
		netip.MustParseAddr(fmt.Sprintf("fd00:244:%x::%x", n.number, 1+n.pods)),
	}, nil
}

// The nftables table by which a node is cut off. It is the node's own rather than the
// link's state, so that routes and addresses are still there afterwards.
const cutTable = "cluster-test-cut"

// Cut drops all packets between the node and the others, as a pulled cable does; given
// addresses, only those to and from these. Packets between the node and its own pods
// pass.
func (n *Node) Cut(ctx context.Context, only ...netip.Addr) error {
	var in, out strings.Builder
	for _, a := range only {
		family := "ip"
		if a.Is6() {
			family = "ip6"
		}
		fmt.Fprintf(&in, "iifname eth0 %s saddr %v drop; ", family, a)
		fmt.Fprintf(&out, "oifname eth0 %s daddr %v drop; ", family, a)
	}
	if len(only) == 0 {
		in.WriteString("iifname eth0 drop; ")
		out.WriteString("oifname eth0 drop; ")
	}
	rules := fmt.Sprintf(`table inet %s {
		chain in { type filter hook prerouting priority -400; %s }
		chain out { type filter hook postrouting priority 400; %s }
	}`, cutTable, in.String(), out.String())
	_, err := n.Run(ctx, "nft", rules)
	return err
}

// Mend undoes Cut.
func (n *Node) Mend(ctx context.Context) error {
	_, err := n.Run(ctx, "nft", "delete", "table", "inet", cutTable)
	return err
}
