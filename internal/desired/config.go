// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"net/netip"
	"slices"
)

// Config is what a State has to know beside objects.
type Config struct {
	// NodeName is the name of the node that is being programmed, as
	// EndpointSlices write it.
	NodeName string

	// NodeIP, if it is valid, is the node's address of its family, whatever
	// the Node object says, and also without one (kube-proxy's
	// bindAddress).
	NodeIP netip.Addr

	// NodePorts selects the addresses on which NodePorts answer.
	NodePorts NodePortAddresses

	// DetectLocal says how traffic of this node's pods is recognized.
	DetectLocal DetectLocal

	// MasqueradeAll has all traffic to ClusterIPs masqueraded.
	MasqueradeAll bool

	// Without are the families that the node cannot serve. What objects say
	// about them is ignored.
	Without Families
}

// NodePortAddresses selects addresses of this node's for NodePorts
// (kube-proxy's --nodeport-addresses). The zero value selects all.
type NodePortAddresses struct {
	// Primary selects the Node's own addresses (status.addresses), one of
	// each family, and nothing else.
	Primary bool

	// CIDRs select the addresses on this node's interfaces that are in one
	// of them. A family of which there is none has all its addresses
	// selected.
	CIDRs []netip.Prefix

	// Loopback lets IPv4 loopback addresses be selected too
	// (kube-proxy's --iptables-localhost-nodeports). The kernel sends nothing
	// from ::1 to another machine, so IPv6 ones never are.
	Loopback bool
}

// OnLoopback says whether NodePorts may answer on an IPv4 loopback address. For that
// the kernel has to route packets from there to other machines.
func (n NodePortAddresses) OnLoopback() bool {
	return n.Loopback && !n.Primary && (n.selects(netip.AddrFrom4([4]byte{127})) ||
		slices.ContainsFunc(n.CIDRs, func(p netip.Prefix) bool { return p.Addr().Is4() && p.Addr().IsLoopback() }))
}

// DetectLocalMode is kube-proxy's --detect-local-mode.
type DetectLocalMode uint8

// The ways to recognize traffic of this node's pods.
const (
	ByClusterCIDR         DetectLocalMode = iota // the source is in CIDRs
	ByNodeCIDR                                   // the source is in the Node's spec.podCIDRs
	ByBridgeInterface                            // it arrives on the interface Interface
	ByInterfaceNamePrefix                        // it arrives on an interface whose name starts with Interface
)

// DetectLocal says how traffic of this node's pods is recognized. The zero value
// recognizes nothing, which is not the same as there being none; see
// [LocalTraffic].
type DetectLocal struct {
	Mode      DetectLocalMode
	CIDRs     []netip.Prefix // for ByClusterCIDR: at most one of each family
	Interface string         // at most 15 bytes
}

// LocalTraffic tells how to recognize traffic of this node's pods. Where it
// tells nothing, there is no saying: then traffic to ClusterIPs is not
// masqueraded, and none is known to come from a pod.
type LocalTraffic struct {
	CIDRs    [families]netip.Prefix // its source is in it; not valid where there is none
	Iface    string                 // or it arrives on this interface,
	IsPrefix bool                   // or on those whose name starts so
}

// Known says whether traffic of a family's pods can be recognized.
func (l LocalTraffic) Known(f Family) bool { return l.Iface != "" || l.CIDRs[f].IsValid() }
