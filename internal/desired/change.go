// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"fmt"
	"net/netip"
)

// PoolID names a pool for as long as it lives. IDs of pools that are gone are
// used again, but never within one Change.
type PoolID uint32

// Change is the difference between two contents. Its parts are to take effect
// together.
type Change struct {
	Frontends []FrontendChange
	Pools     []PoolChange

	// Rebuild says that something changed that everything depends on: only
	// Full describes it. The rest of the Change is empty then.
	Rebuild bool

	// Local tells how to recognize traffic of this node's pods. It differs
	// from the last Change's only after a Rebuild.
	Local LocalTraffic

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

	// HealthChecks are the ports for health checks of load balancers. A
	// backend does not answer there, but may have to let in who asks.
	HealthChecks []HealthCheck

	// StaleFlows tell which entries of conntrack keep traffic from where it
	// would go now. They are not for the backend, and to be acted on once
	// the change is in effect.
	StaleFlows []StaleFlows

	// Problems are contradictions among the objects, each told once.
	Problems []Problem
}

// Empty says that there is nothing to program.
func (c *Change) Empty() bool {
	return !c.Rebuild && len(c.Frontends) == 0 && len(c.Pools) == 0 &&
		c.ClusterIPs.empty() && c.HairpinIPs.empty() && c.ServiceCIDRs.empty() && len(c.HealthChecks) == 0
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

// AddressChange is what differs in a set of addresses.
type AddressChange struct {
	Added, Removed []netip.Addr
}

func (c *AddressChange) empty() bool { return len(c.Added) == 0 && len(c.Removed) == 0 }

// PrefixChange is what differs in a set of address ranges.
type PrefixChange struct {
	Added, Removed []netip.Prefix
}

func (c *PrefixChange) empty() bool { return len(c.Added) == 0 && len(c.Removed) == 0 }

// Problem is something about an object that cannot be done, and why. The rest
// of the object, and all other objects, are not affected.
type Problem struct {
	Object string // "Service default/web"
	Field  string // "spec.clusterIPs[0]"
	Reason string
}

// Error is the problem in one line.
func (p Problem) Error() string { return fmt.Sprintf("%s: %s: %s", p.Object, p.Field, p.Reason) }
