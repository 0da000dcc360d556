// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"fmt"
	"iter"
	"net/netip"
)

// Set is one of the sets of a Change.
type Set uint8

// The sets. Those before Programmed are for dataplanes, which have them in the kernel.
const (
	// ClusterIPs are the addresses that belong to one Service as a whole.
	// Traffic to one of them that matches no frontend is rejected. With [Config.IPVS] they have the
	// addresses of load balancers too, if they are neither this node's nor another Node's.
	ClusterIPs Set = iota

	// HairpinIPs are the addresses of chosen backends that may be on this node. Traffic from such a backend that a
	// Service sends back to the same backend is masqueraded, because its replies would not return otherwise.
	HairpinIPs

	// NodeAddresses are the addresses of this node that serve NodePorts; none with [Config.IPVS].
	NodeAddresses

	// ServiceCIDRs are the ranges from which ClusterIPs are allocated, without
	// overlaps. Traffic to an address in them that no Service has is dropped.
	ServiceCIDRs

	// RefusedNodePorts are the NodePorts that are refused at all loopback addresses of a family, and counted.
	RefusedNodePorts

	// Programmed is the number of the sets above.
	Programmed

	// OwnIPs are the addresses of this node's interfaces, without IPv6 link-local ones.
	OwnIPs Set = iota - 1

	// HealthPorts are the TCP ports on which this node answers the health checks of load balancers. A dataplane does
	// not answer, but may have to accept the packets.
	HealthPorts

	// SlowPathIPs are the addresses of pods whose connections, from and to them, stay off
	// the fast path ([AnnotationFastPath], [Config.SlowPathPod]). Only the fast path uses them.
	SlowPathIPs

	// DirectIPs are the addresses of pods whose sockets may connect straight to endpoints
	// ([Config.DirectPod]). Only package socket uses them.
	DirectIPs

	// Sets is the number of sets.
	Sets
)

// setNames are in the order of the sets.
var setNames = [Sets]string{"ClusterIP", "hairpin", "node address", "ServiceCIDR", "refused loopback NodePort",
	"address of this node", "health check port", "slow path address", "direct address"}

// String is the name of a member of the set.
func (s Set) String() string { return setNames[s] }

// Member is a member of a set: an address, a range, or a port of a family.
type Member struct {
	Addr     netip.Addr // of a port, the unspecified address of its family
	Bits     uint8      // length of a range's prefix; 0 for an address
	Protocol Protocol   // of a port; 0 for others
	Port     uint16
}

// Address is the member for an address.
func Address(a netip.Addr) Member { return Member{Addr: a} }

// Range is the member for a range.
func Range(p netip.Prefix) Member { return Member{Addr: p.Addr(), Bits: uint8(p.Bits())} }

// PortOf is the member for a port of a family.
func PortOf(f Family, p Protocol, port uint16) Member {
	return Member{Addr: unspecified[f], Protocol: p, Port: port}
}

// Family is the member's family.
func (m Member) Family() Family { return FamilyOf(m.Addr) }

// Prefix is a range.
func (m Member) Prefix() netip.Prefix { return netip.PrefixFrom(m.Addr, int(m.Bits)) }

// String is the address, the range, or the port as in "30080/SCTP of IPv4".
func (m Member) String() string {
	switch {
	case m.Protocol != 0:
		return fmt.Sprintf("%d/%s of %s", m.Port, m.Protocol, m.Family())
	case m.Bits != 0:
		return m.Prefix().String()
	}
	return m.Addr.String()
}

// SetChange is the difference in a set.
type SetChange struct {
	Added, Removed []Member
}

// All yields the members, and whether they were added.
func (c SetChange) All() iter.Seq2[Member, bool] {
	return func(yield func(Member, bool) bool) {
		for _, m := range c.Removed {
			if !yield(m, false) {
				return
			}
		}
		for _, m := range c.Added {
			if !yield(m, true) {
				return
			}
		}
	}
}

// Note updates a record of the members' addresses.
func (c SetChange) Note(record map[netip.Addr]bool) {
	for m, added := range c.All() {
		put(record, m.Addr, added)
	}
}

// put has a member in a set, or not.
func put[K comparable](set map[K]bool, member K, in bool) {
	if set[member] = true; !in {
		delete(set, member)
	}
}
