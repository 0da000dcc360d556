// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
)

// Protocol is an IANA protocol number, of those a Service may have.
type Protocol uint8

// The protocols of Services.
const (
	TCP  Protocol = 6
	UDP  Protocol = 17
	SCTP Protocol = 132
)

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

// protocolOf is the protocol that the API names; none named is TCP, the API's
// default. It is 0 for names the API does not have.
func protocolOf(p corev1.Protocol) Protocol {
	switch p {
	case corev1.ProtocolTCP, "":
		return TCP
	case corev1.ProtocolUDP:
		return UDP
	case corev1.ProtocolSCTP:
		return SCTP
	}
	return 0
}

// AddressKind is what kind of address a frontend has.
type AddressKind uint8

// The kinds of frontend addresses. Where two Services claim one address, port
// and protocol, the kind that comes first here has it.
const (
	// ClusterIP is a virtual address that belongs to one Service as a
	// whole: ports that the Service does not have are refused.
	ClusterIP AddressKind = iota + 1
	// LoadBalancerIP is an address of status.loadBalancer.ingress whose
	// traffic arrives with that address as its destination (ipMode VIP).
	LoadBalancerIP
	// ExternalIP is an address of spec.externalIPs.
	ExternalIP
	// NodePort is an address of this node's, with a port of its own.
	NodePort
)

// String is the kind in the API's words.
func (k AddressKind) String() string {
	switch k {
	case ClusterIP:
		return "ClusterIP"
	case ExternalIP:
		return "external IP"
	case LoadBalancerIP:
		return "load balancer IP"
	case NodePort:
		return "NodePort"
	}
	return fmt.Sprintf("address kind %d", uint8(k))
}

// External says whether traffic to addresses of the kind is external traffic,
// to which externalTrafficPolicy applies and which is masqueraded unless that
// policy keeps it on this node.
func (k AddressKind) External() bool { return k != ClusterIP }

// FrontendKey is what tells frontends apart.
type FrontendKey struct {
	netip.AddrPort
	Protocol Protocol
}

// String is "10.96.0.10:53/UDP".
func (k FrontendKey) String() string { return k.AddrPort.String() + "/" + k.Protocol.String() }

// Frontend is an address, protocol and port that clients connect to. It is
// comparable: frontends that are equal mean the same.
type Frontend struct {
	FrontendKey
	Kind    AddressKind
	Service ServicePort

	// Pool has the backends that answer, and Scope is its scope.
	Pool  PoolID
	Scope Scope

	// LocalPool, unless it is [NoPool], has the Local scope, where Pool has
	// the Cluster scope, and has those backends that answer instead when
	// the traffic comes from outside: neither from a pod of this node (see
	// [LocalTraffic]) nor from the node itself (externalTrafficPolicy: Local).
	LocalPool PoolID

	// Affinity is for how many seconds a client's address stays with its
	// backend after its last new connection (sessionAffinity: ClientIP); 0
	// for not at all.
	Affinity uint32

	// Sources are who may connect; nil for everybody.
	Sources *SourceRanges
}

// NoPool is no pool's ID.
const NoPool PoolID = 1<<32 - 1

// SourceRanges are ranges of client addresses of one family, disjoint and in
// order. They do not change.
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
