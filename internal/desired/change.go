// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"fmt"
	"net/netip"
)

// PoolID names a pool for as long as it lives. IDs of pools that are gone are
// used again, but never within one Change.
type PoolID uint32

// Update is what differs between two contents, in a part for each reader.
type Update struct {
	// Change is for dataplanes. The other parts are acted on when it is in effect.
	Change

	// Health is what load balancers' health checks are answered from now on.
	Health []HealthCheck

	// Flows tell which conntrack entries keep traffic from where it would go now.
	Flows []StaleFlows

	// Problems are contradictions among the objects. Each is in one Update only.
	Problems []Problem
}

// Change is what a dataplane programs. Its parts take effect together.
type Change struct {
	Frontends []FrontendChange
	Pools     []PoolChange

	// Rebuild says that something changed that everything depends on: only
	// Full describes it. The rest of the Change is empty then.
	Rebuild bool

	// Local tells how to recognize traffic of this node's pods, and Masquerade
	// what is masqueraded. They differ from the last Change's only after a Rebuild.
	Local      LocalTraffic
	Masquerade MasqueradePolicy

	// ClusterIPs are the addresses that belong to Services as a whole.
	// Traffic to one of them that meets no frontend is refused.
	ClusterIPs AddressChange

	// HairpinIPs are the addresses of chosen backends that may be on this
	// node. Only they can reach themselves through a Service by way of
	// this node, and their replies return only when the source is
	// masqueraded.
	HairpinIPs AddressChange

	// ServiceCIDRs are the ranges from which ClusterIPs are taken, without
	// overlaps. Traffic to an address in them that is no Service's is
	// dropped.
	ServiceCIDRs PrefixChange

	// HealthPorts are the TCP ports on which this node answers load balancers'
	// health checks. A dataplane does not answer there, but may have to accept
	// the packets.
	HealthPorts SetChange[HealthPort]
}

// Empty says that there is nothing to program.
func (c *Change) Empty() bool {
	return !c.Rebuild && len(c.Frontends) == 0 && len(c.Pools) == 0 &&
		c.ClusterIPs.empty() && c.HairpinIPs.empty() && c.ServiceCIDRs.empty() && c.HealthPorts.empty()
}

// FrontendChange is a frontend that is new (no Old), gone (no New) or
// different.
type FrontendChange struct {
	Old, New *Frontend
}

// Key is the frontend's key, the same in Old and New.
func (c FrontendChange) Key() FrontendKey {
	if c.New != nil {
		return c.New.FrontendKey
	}
	return c.Old.FrontendKey
}

// PoolChange is what differs in a pool. Backends are in no particular order,
// and none is in both lists.
type PoolChange struct {
	ID      PoolID
	Service ServicePort // whose endpoints these are, for comments and messages
	Family  Family
	Scope   Scope
	Sticky  bool // frontends of the pool have an Affinity; the same for as long as the pool lives
	Added   []Backend
	Removed []Backend
	IfEmpty Verdict
	New     bool // the pool was not there before
	Gone    bool // the pool is no more; Removed then lists all it had
}

// Scope is from where in the cluster a pool takes its backends.
type Scope uint8

// The scopes of pools.
const (
	// Cluster takes endpoints anywhere, as topology hints say.
	Cluster Scope = iota
	// Local takes those on this node.
	Local
	scopes = 2
)

// String is "Cluster" or "Local".
func (s Scope) String() string {
	if s == Local {
		return "Local"
	}
	return "Cluster"
}

// Verdict is what happens to traffic for a pool without backends.
type Verdict uint8

// The verdicts for an empty pool.
const (
	// Reject answers at once that nobody is there.
	Reject Verdict = iota
	// Drop says nothing: there are endpoints, but traffic policy keeps this
	// node from using them.
	Drop
)

// String is "reject" or "drop".
func (v Verdict) String() string {
	if v == Drop {
		return "drop"
	}
	return "reject"
}

// SetChange is what differs in a set.
type SetChange[T any] struct {
	Added, Removed []T
}

func (c *SetChange[T]) empty() bool { return len(c.Added) == 0 && len(c.Removed) == 0 }

// AddressChange is what differs in a set of addresses.
type AddressChange = SetChange[netip.Addr]

// PrefixChange is what differs in a set of address ranges.
type PrefixChange = SetChange[netip.Prefix]

// HealthPort is a port for health checks in one family.
type HealthPort struct {
	Family Family
	Port   uint16
}

// Problem is something about an object that cannot be done, and why. The rest
// of the object, and all other objects, are not affected.
type Problem struct {
	Object string // "Service default/web"
	Field  string // "spec.clusterIPs[0]"
	Reason string
}

// Error is the problem in one line.
func (p Problem) Error() string { return fmt.Sprintf("%s: %s: %s", p.Object, p.Field, p.Reason) }
