// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The pods' default gateways, held by their node on each pod's veth. They are
// of link scope, so they are never taken as a source address for others (nor
// listed by SCTP, which tells its peer all addresses in scope).
var podGateways = [2]netip.Prefix{
	netip.MustParsePrefix("169.254.1.1/32"),
	netip.MustParsePrefix("fe80::1/64"),
}

// Pod is a pod on a node, connected like the ptp CNI plugin does it: a veth
// pair whose inner end, eth0, holds the pod's addresses as /32 and /128, with
// the default route to a gateway address on the outer end.
type Pod struct {
	Machine
	node *Node
	veth netlink.Link // the node's end
}

// Pod adds a pod with one address, or one of each family, from the node's pod
// CIDRs. The node reaches it with its own fabric address as source.
func (n *Node) Pod(name string, addrs ...netip.Addr) (*Pod, error) {
	if err := n.checkPod(addrs); err != nil {
		return nil, fmt.Errorf("lab: pod %s: %w", name, err)
	}
	p := &Pod{node: n}
	if err := n.lab.add(&p.Machine, "pod", name, endProfile); err != nil {
		return nil, err
	}
	if err := p.setUp(addrs); err != nil {
		_ = p.Delete()
		return nil, p.wrap(err)
	}
	return p, nil
}

func (n *Node) checkPod(addrs []netip.Addr) error {
	prefixes := make([]netip.Prefix, 0, len(addrs))
	for _, a := range addrs {
		if !a.IsValid() || a.Is4In6() {
			return fmt.Errorf("address: %v is not valid", a)
		}
		if cidr := n.podCIDRs[familyIndex(a)]; !cidr.Contains(a) {
			return fmt.Errorf("address: %v is not in a pod CIDR of node %s %v", a, n.name, n.PodCIDRs())
		}
		prefixes = append(prefixes, single(a))
	}
	return onePerFamily("address", prefixes)
}

func (p *Pod) setUp(addrs []netip.Addr) error {
	n := p.node
	veth, eth0, err := n.addVeth(fmt.Sprintf("veth%d", n.veths.Add(1)), p.Namespace)
	if err != nil {
		return err
	}
	p.veth, p.link = veth, eth0
	var gateways []netip.Addr
	for _, a := range addrs {
		i := familyIndex(a)
		gw := podGateways[i]
		gateways = append(gateways, gw.Addr())
		err := errors.Join(
			// On the node: the gateway, and the way to the pod.
			n.addAddr(veth, gw, netlink.SCOPE_LINK),
			n.addRoute(netlink.Route{
				LinkIndex: veth.Attrs().Index, Dst: ipNet(single(a)), Src: n.addrs[i].AsSlice(), Scope: netlink.SCOPE_LINK,
			}),
			// In the pod: its address, and the way out.
			p.addAddr(eth0, single(a), netlink.SCOPE_UNIVERSE),
			p.addRoute(netlink.Route{
				LinkIndex: eth0.Attrs().Index, Dst: ipNet(defaultRoute(a)), Gw: gw.Addr().AsSlice(), Flags: int(netlink.FLAG_ONLINK),
			}),
		)
		if err != nil {
			return err
		}
		p.addrs[i] = a
	}
	if err := p.waitUsable(eth0, gateways...); err != nil {
		return err
	}
	return n.waitUsable(veth, p.Addrs()...)
}

// Node returns the node that the pod runs on.
func (p *Pod) Node() *Node { return p.node }

// NodeLink returns the name of the veth's end on the node.
func (p *Pod) NodeLink() string { return p.veth.Attrs().Name }

// Delete ends all that runs in the pod, its servers' connections included, and
// removes its link and its namespace. Its name and addresses are free again
// on return. Calls after the first do nothing.
func (p *Pod) Delete() error {
	err := p.lab.remove(&p.Machine)
	if p.veth == nil || p.node.FD() < 0 {
		return err
	}
	// The kernel removes the link with the namespace, but only some time later.
	if err := p.node.nl.LinkDel(p.veth); err != nil && !errors.Is(err, unix.ENODEV) {
		return p.wrap(fmt.Errorf("delete link %s of node %s: %w", p.NodeLink(), p.node.name, err))
	}
	return err
}
