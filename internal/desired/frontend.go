// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Protocol is an IANA protocol number, of those a Service may have.
type Protocol uint8

// The protocols of Services.
const (
	TCP  Protocol = 6
	UDP  Protocol = 17
	SCTP Protocol = 132
)

// Protocols lists them.
var Protocols = []Protocol{TCP, UDP, SCTP}

// String is the protocol as the Kubernetes API writes it.
func (p Protocol) String() string {
	switch p {
	case TCP:
		return string(corev1.ProtocolTCP)
	case UDP:
		return string(corev1.ProtocolUDP)
	case SCTP:
		return string(corev1.ProtocolSCTP)
	}
	return fmt.Sprintf("protocol %d", uint8(p))
}

// protocols are those of the API by name. Without one, TCP is the API's default.
var protocols = map[corev1.Protocol]Protocol{"": TCP, corev1.ProtocolTCP: TCP, corev1.ProtocolUDP: UDP, corev1.ProtocolSCTP: SCTP}

// AddressKind is what kind of address a frontend has.
type AddressKind uint8

// The kinds of frontend addresses, in order of precedence: if two Services claim one
// address, port and protocol, the kind that is listed first wins.
const (
	// ClusterIP is a virtual address that belongs to one Service as a whole: traffic to other ports is rejected.
	ClusterIP AddressKind = iota + 1
	// LoadBalancerIP is an address of status.loadBalancer.ingress whose
	// traffic arrives with that address as its destination (ipMode VIP).
	LoadBalancerIP
	// NodePort is an address of this node, with the port's own nodePort.
	NodePort
	// ExternalIP is an address of spec.externalIPs.
	ExternalIP
)

// String is the kind as in the Kubernetes documentation.
func (k AddressKind) String() string {
	return [...]string{ClusterIP: "ClusterIP", LoadBalancerIP: "load balancer IP", NodePort: "NodePort", ExternalIP: "external IP"}[k]
}

// External reports whether externalTrafficPolicy applies to addresses of the kind.
// Traffic to them is masqueraded unless that policy is Local.
func (k AddressKind) External() bool { return k != ClusterIP }

// FrontendKey identifies a frontend. The unspecified address is that of a NodePort. It stands for each of
// [NodeAddresses] that is not a ClusterIP or, with the same port and protocol, a load balancer IP.
type FrontendKey struct {
	netip.AddrPort
	Protocol Protocol
	Last     uint16 // the last port of a range; 0 for one port ([AnnotationPortRanges])
}

// OnNode reports whether the frontend is a NodePort at all addresses in [NodeAddresses].
func (k FrontendKey) OnNode() bool { return k.Addr().IsUnspecified() }

// NodePort is the key of the NodePort with the same port and protocol.
func (k FrontendKey) NodePort() FrontendKey { return k.At(unspecified[FamilyOf(k.Addr())]) }

// At is the key with another address.
func (k FrontendKey) At(ip netip.Addr) FrontendKey {
	return FrontendKey{netip.AddrPortFrom(ip, k.Port()), k.Protocol, k.Last}
}

// String is "10.96.0.10:53/UDP", or "10.96.0.10:10000-20000/UDP" for a range.
func (k FrontendKey) String() string {
	s := k.AddrPort.String()
	if k.IsRange() {
		s = fmt.Sprintf("%s-%d", s, k.Last)
	}
	return s + "/" + k.Protocol.String()
}

// Frontend is an address, protocol and port that clients connect to. It is comparable.
type Frontend struct {
	FrontendKey
	Kind    AddressKind
	Service ServicePort

	// Pool has the backends that answer, and Scope is its scope.
	Pool  PoolID
	Scope Scope

	// LocalPool has the backends for traffic from outside, which comes neither from a pod of this node (see
	// [LocalTraffic]) nor from the node itself. It is set with externalTrafficPolicy: Local, and [NoPool] otherwise.
	// Its scope is Local, and that of Pool is Cluster.
	LocalPool PoolID

	// Passes says that traffic from outside is passed on by the node's routes
	// ([AnnotationFailover]). LocalPool is set, and has no backends.
	Passes bool

	// Affinity is how many seconds a client's address keeps its backend after its
	// last new connection (sessionAffinity: ClientIP); 0 without affinity.
	Affinity uint32

	// Shared says that a client keeps its endpoint in all ports of the Service, as it has ranges and Affinity.
	Shared bool

	// Parts are those of a range, in order, and immutable; nil for one with LastTurn.
	Parts *[]Part

	// Sources are the client addresses that may connect; nil for all.
	Sources *SourceRanges

	// SlowPath keeps connections off the fast path ([AnnotationFastPath]).
	SlowPath bool

	// Limits are those of the Service, over all of its frontends but ranges of ports.
	Limits Limits

	// IPVS says that the frontend has a virtual server: the dataplane's table serves Pool only if there is a
	// LocalPool too.
	IPVS bool

	// Scheduler is the IPVS scheduler of this Service ([AnnotationScheduler]); "" for the node's.
	Scheduler string
}

// Pools are Pool, and LocalPool if it is set. Where a dataplane does not tell apart the traffic
// of both, the verdict of the first empty one applies.
func (f *Frontend) Pools() []PoolID {
	if f.LocalPool == NoPool {
		return []PoolID{f.Pool}
	}
	return []PoolID{f.Pool, f.LocalPool}
}

// VirtualServer returns the pool of the frontend's virtual server, or [NoPool] without. IPVS cannot tell
// traffic from outside by the address, so it serves all traffic to the address that the table leaves.
func (f *Frontend) VirtualServer() PoolID {
	switch {
	case !f.IPVS:
		return NoPool
	case f.LocalPool != NoPool:
		return f.LocalPool
	}
	return f.Pool
}

// NoPool is a PoolID that no pool has.
const NoPool PoolID = 1<<32 - 1

// SourceRanges are ranges of client addresses of one family, disjoint and in order. They are immutable.
type SourceRanges struct{ ranges []netip.Prefix }

// All lists the ranges.
func (s *SourceRanges) All() []netip.Prefix { return s.ranges }

// ServicePort names a port of a Service.
type ServicePort struct {
	Namespace, Name string
	Port            string // the port's name; "" when the Service has a single unnamed port
}

// String is "default/web:http", or "default/web" for an unnamed port.
func (p ServicePort) String() string {
	s := p.Namespace + "/" + p.Name
	if p.Port != "" {
		s += ":" + p.Port
	}
	return s
}

// Owner is the Service of the port.
func (p ServicePort) Owner() types.NamespacedName {
	return types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
}
