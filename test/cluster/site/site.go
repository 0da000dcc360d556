// SPDX-License-Identifier: Apache-2.0

// Package site is a cluster in a lab: nodes and pods that are network namespaces, and a
// control plane that has an object for each of them. It does what kubelets would.
package site

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/slipstream-proxy/slipstream/internal/collect"
	"github.com/slipstream-proxy/slipstream/test/cluster/oracle/upstream"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var (
	ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:96::/112")}
	ClusterCIDRs = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:244::/32")} // of all pods
)

// Namespace is where all objects are that are in a namespace.
const Namespace = "default"

// Site is a cluster.
type Site struct {
	Lab   *lab.Lab
	Plane *Plane
}

// Plane is the cluster's control plane, on a machine of its own.
type Plane struct {
	*upstream.ControlPlane
	Host *lab.Host
}

// Start makes a cluster without nodes and without controllers: etcd and kube-apiserver
// serve. It sets the address and the namespace of the options, and writes into their
// directory. The caller closes the Site.
func Start(ctx context.Context, o upstream.ControlPlaneOptions) (_ *Site, err error) {
	l, err := lab.New()
	if err != nil {
		return nil, err
	}
	s := &Site{Lab: l}
	defer lab.OnError(&err, s.Close)
	host, err := l.Host("control-plane", OnFabric(2)...)
	if err != nil {
		return nil, err
	}
	o.Namespace, o.Address = host.Namespace, netip.AddrPortFrom(host.Addr(false), 6443)
	plane, err := upstream.StartControlPlane(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("control plane: %w", err)
	}
	s.Plane = &Plane{plane, host}
	return s, s.Plane.allowProxies(ctx)
}

// OnFabric are addresses of a machine outside of all nodes, by a number from 2 to 9 or from 200.
func OnFabric(number int) []netip.Prefix {
	return []netip.Prefix{
		netip.MustParsePrefix(fmt.Sprintf("192.168.100.%d/24", number)),
		netip.MustParsePrefix(fmt.Sprintf("fd00:100::%x/64", number)),
	}
}

// Close ends everything.
func (s *Site) Close() error {
	var err error
	if s.Plane != nil {
		err = s.Plane.Close()
	}
	return errors.Join(err, s.Lab.Close())
}

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
		Addresses: OnFabric(10 + number),
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
	object.Spec.PodCIDRs = collect.From(n.PodCIDRs(), netip.Prefix.String)
	object.Spec.PodCIDR = object.Spec.PodCIDRs[0]
	nodes := n.site.Plane.Client.CoreV1().Nodes()
	object, err := nodes.Create(ctx, object, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	object.Status.Addresses = collect.From(n.Addrs(), func(a netip.Addr) corev1.NodeAddress {
		return corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a.String()}
	})
	object.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	object.ResourceVersion = "" // kube-controller-manager, if there is one, has changed it
	_, err = nodes.UpdateStatus(ctx, object, metav1.UpdateOptions{})
	return err
}

// Unregister deletes the Node object.
func (n *Node) Unregister(ctx context.Context) error {
	return n.site.Plane.Client.CoreV1().Nodes().Delete(ctx, n.Name(), metav1.DeleteOptions{})
}

// Idle makes a pod, at addresses that no pod had before, of which the control plane does not know.
// The caller deletes it.
func (n *Node) Idle(name string) (*lab.Pod, error) {
	n.pods++
	if n.pods > 250 {
		return nil, fmt.Errorf("node %s: no pod addresses are left", n.Name())
	}
	return n.Pod(name, netip.MustParseAddr(fmt.Sprintf("10.244.%d.%d", n.number, 1+n.pods)),
		netip.MustParseAddr(fmt.Sprintf("fd00:244:%x::%x", n.number, 1+n.pods)))
}
