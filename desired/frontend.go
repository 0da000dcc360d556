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

// The kinds of frontend addresses.
const (
	// ClusterIP is a virtual address that belongs to one Service as a
	// whole: ports that the Service does not have are refused.
	ClusterIP AddressKind = iota + 1
)

// String is the kind in the API's words.
func (k AddressKind) String() string {
	if k == ClusterIP {
		return "ClusterIP"
	}
	return fmt.Sprintf("address kind %d", uint8(k))
}

// FrontendKey is what tells frontends apart.
type FrontendKey struct {
	netip.AddrPort
	Protocol Protocol
}

// String is "10.96.0.10:53/UDP".
func (k FrontendKey) String() string { return k.AddrPort.String() + "/" + k.Protocol.String() }

// Frontend is an address, protocol and port that clients connect to.
type Frontend struct {
	FrontendKey
	Kind    AddressKind
	Service ServicePort
	Pool    PoolID // the backends that answer
}

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
