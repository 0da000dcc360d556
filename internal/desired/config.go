// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Config is the part of a State's input that is not made of objects.
type Config struct {
	// NodeName is the name of the node that is being programmed, as EndpointSlices write it.
	NodeName string

	// NodeIP, if valid, overrides the Node object's address of the same family (kube-proxy's bindAddress).
	NodeIP netip.Addr

	// NodePorts selects the addresses on which NodePorts answer.
	NodePorts NodePortAddresses

	// IPVS says that virtual servers of the kernel serve frontends, where they can (see [Frontend.IPVS]). A NodePort is
	// one frontend for each address then; otherwise it is one for all addresses of a family.
	IPVS bool

	// LoopbackNodePorts says how NodePorts on loopback addresses are handled, by Family.
	LoopbackNodePorts [families]LoopbackNodePorts

	// DetectLocal says how traffic from this node's pods is recognized.
	DetectLocal DetectLocal

	// MasqueradeAll masquerades all traffic to ClusterIPs.
	MasqueradeAll bool

	// NoExternalIPs ignores spec.externalIPs (feature gate AllowServiceExternalIPs,
	// KEP-5707), a defence against CVE-2020-8554.
	NoExternalIPs bool

	// ExternalIPs are the ranges in which spec.externalIPs of Services count. Without, all do.
	ExternalIPs []netip.Prefix

	// APIServers are addresses of API servers, beside those of the endpoints of Service
	// default/kubernetes. No external IP takes them.
	APIServers []netip.AddrPort

	// Scheduler checks the value of [AnnotationScheduler], "" for the node's scheduler, and returns what
	// Frontend.Scheduler is to be: if backends are weighted, one that looks at weights. It is nil where the
	// dataplane has no schedulers of its own.
	Scheduler func(value string, weighted bool) (string, error)

	// SlowPathPod reports whether the connections of a pod stay off the fast path whatever
	// its annotation. Nil selects none.
	SlowPathPod func(*corev1.Pod) bool

	// DirectPod selects the pods for DirectIPs. Nil selects none.
	DirectPod func(*corev1.Pod) bool

	// Balancing is how connections are spread where [AnnotationScheduler] does not say.
	Balancing Scheduler

	// Annotated selects, by their labels, Namespaces in which annotations of Services, EndpointSlices and
	// pods count. Nil selects all.
	Annotated func(map[string]string) bool

	// Supports returns an error if the dataplane lacks an algorithm. nil supports all.
	Supports func(Algorithm) error

	// NoRanges says that the dataplane does not have [AnnotationPortRanges].
	NoRanges bool

	// NoLimits says that the dataplane does not enforce [Limits].
	NoLimits bool

	// Loads counts the connections of backends, for LeastConnections. Without, it is Random.
	Loads Loads

	// NamespaceSlots, NamespaceElements and NamespaceChange replace MaxSlots, MaxElements and MaxChange; 0 for these.
	NamespaceSlots, NamespaceElements, NamespaceChange int

	// MaxTable is the largest size of a Maglev table, one of [TableSizes]; 0 for MaxTable.
	MaxTable int

	// Without lists the families that the node cannot serve. Addresses of these families are ignored.
	Without Families
}

// NodePortAddresses selects the addresses of this node that serve NodePorts (kube-proxy's --nodeport-addresses). The
// zero value selects all. IPv6 link-local addresses never serve NodePorts.
type NodePortAddresses struct {
	// Primary selects the Node's own addresses (status.addresses), one of each family.
	Primary bool

	// CIDRs selects the addresses on this node's interfaces that are in one of the ranges. All addresses of a family
	// without a range are selected, unless Primary is set.
	CIDRs []netip.Prefix

	// Loopback allows IPv4 loopback addresses too, served by the kernel (kube-proxy's --iptables-localhost-nodeports).
	// IPv6 has no equivalent: the kernel never sends packets with the source ::1 to another machine.
	Loopback bool
}

// OnLoopback reports whether an IPv4 loopback address may serve NodePorts. The kernel
// then has to route packets with such a source to other machines (route_localnet).
func (n NodePortAddresses) OnLoopback() bool {
	return n.Loopback && (n.selects(netip.AddrFrom4([4]byte{127})) ||
		slices.ContainsFunc(n.CIDRs, func(p netip.Prefix) bool { return p.Addr().Is4() && p.Addr().IsLoopback() }))
}

// DetectLocalMode is kube-proxy's --detect-local-mode.
type DetectLocalMode uint8

// The ways to recognize traffic from this node's pods.
const (
	ByClusterCIDR         DetectLocalMode = iota // the source is in CIDRs
	ByNodeCIDR                                   // the source is in the Node's spec.podCIDRs
	ByBridgeInterface                            // it arrives on the interface Interface
	ByInterfaceNamePrefix                        // it arrives on an interface whose name starts with Interface
)

// DetectLocal says how traffic from this node's pods is recognized. With the zero
// value it cannot be recognized; see [LocalTraffic].
type DetectLocal struct {
	Mode      DetectLocalMode
	CIDRs     []netip.Prefix // for ByClusterCIDR: at most one of each family
	Interface string         // at most 15 bytes
}

// LocalTraffic says how to recognize traffic from this node's pods. For a family without a criterion, traffic to
// ClusterIPs is not masqueraded, and no traffic is treated as coming from a pod.
type LocalTraffic struct {
	CIDRs    [families]netip.Prefix // the range of its source address, or invalid
	Iface    string                 // the interface on which it arrives, or ""
	IsPrefix bool                   // Iface is a prefix of interface names
}

// Known reports whether pod traffic of a family can be recognized.
func (l LocalTraffic) Known(f Family) bool { return l.Iface != "" || l.CIDRs[f].IsValid() }
