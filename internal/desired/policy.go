// SPDX-License-Identifier: Apache-2.0

package desired

import corev1 "k8s.io/api/core/v1"

// This file decides which endpoints of a Service port become its backends.
// Decisions are made from counts (tally), never from a walk over endpoints, so
// that their cost does not depend on how many there are; only when a decision
// comes out differently from before (choice differs) is every endpoint of that
// one Service port looked at again.

// condition is what is known about an endpoint, as bits.
type condition uint16

const (
	ready       condition = 1 << iota // takes new connections
	serving                           // answers, though perhaps terminating
	terminating                       // is on its way out
	local                             // is on this node
	maybeLocal                        // is on this node, or does not say where
	zoneHint                          // is meant for certain zones,
	hintsHere                         // this node's among them
	nodeHint                          // is meant for certain nodes,
	hintsNode                         // this one among them

	conditionBits = iota
)

// class sorts an endpoint by its fitness to take new connections.
type class uint8

const (
	unusable class = iota
	lastResort
	usable
	classes
)

// class of an endpoint: terminating endpoints that still serve are a last
// resort (KEP-1669), not ready ones are of no use.
func (c condition) class() class {
	switch {
	case c&ready != 0:
		return usable
	case c&serving != 0 && c&terminating != 0:
		return lastResort
	}
	return unusable
}

// tally counts endpoints by class, and the usable ones by their hints.
type tally struct {
	all   [classes]int32
	local [classes]int32

	zoneHint, hintsHere, nodeHint, hintsNode int32
}

func (t *tally) count(c condition, n int32) {
	class := c.class()
	t.all[class] += n
	if c&local != 0 {
		t.local[class] += n
	}
	if class != usable {
		return
	}
	for _, hint := range []struct {
		bit condition
		sum *int32
	}{{zoneHint, &t.zoneHint}, {hintsHere, &t.hintsHere}, {nodeHint, &t.nodeHint}, {hintsNode, &t.hintsNode}} {
		if c&hint.bit != 0 {
			*hint.sum += n
		}
	}
}

// policy is what a Service says about the choice of its backends.
type policy struct {
	internalLocal bool // internalTrafficPolicy: Local (KEP-2086)
	externalLocal bool // externalTrafficPolicy: Local
}

func policyOf(svc *corev1.Service) (p policy) {
	if l := svc.Spec.InternalTrafficPolicy; l != nil {
		p.internalLocal = *l == corev1.ServiceInternalTrafficPolicyLocal
	}
	p.externalLocal = svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
	return p
}

// uses says whether a Service with that policy has a pool of a scope, when it
// has external frontends and when it has not. External traffic that starts on
// this node goes to the whole cluster whatever the policy.
func (p policy) uses(s Scope, external bool) bool {
	if s == Local {
		return p.internalLocal || p.externalLocal && external
	}
	return !p.internalLocal || external
}

// scopes are where a frontend of some kind finds its backends: in pool, and
// for traffic from outside in fromOutside, if that differs.
func (p policy) scopes(k AddressKind) (pool, fromOutside Scope) {
	switch {
	case !k.External() && p.internalLocal:
		return Local, Local
	case k.External() && p.externalLocal:
		return Cluster, Local
	}
	return Cluster, Cluster
}

// Masquerade says which traffic gets an address of this node's as its source address.
type Masquerade uint8

const (
	// MasqueradeNotPods is all that [LocalTraffic] does not recognize as traffic of this
	// node's pods; nothing where it recognizes nothing.
	MasqueradeNotPods Masquerade = iota
	// MasqueradeAlways is all traffic.
	MasqueradeAlways
	// MasqueradeNode is what starts on this node itself.
	MasqueradeNode
)

// MasqueradePolicy is what is masqueraded, by the kind of frontend that traffic is for.
// What an endpoint sends to itself is masqueraded in addition (Change.HairpinIPs).
type MasqueradePolicy struct {
	ClusterIPs Masquerade // MasqueradeNotPods or MasqueradeAlways
	External   Masquerade // of external frontends without a LocalPool
	Local      Masquerade // of those with one: traffic from outside keeps its source
}

// masquerade is the policy that follows from the configuration.
func (c *Config) masquerade() MasqueradePolicy {
	m := MasqueradePolicy{ClusterIPs: MasqueradeNotPods, External: MasqueradeAlways, Local: MasqueradeNode}
	if c.MasqueradeAll {
		m.ClusterIPs = MasqueradeAlways
	}
	return m
}

// choice is which endpoints are backends.
type choice struct {
	class class
	has   condition // bits that an endpoint must have
}

// choose decides for a pool. Endpoints of the best class that has any are
// taken, in the Cluster scope narrowed by hints (KEP-2433, KEP-3015).
func (t *tally) choose(s Scope) (c choice, ifEmpty Verdict) {
	among := &t.all
	if s == Local {
		among, c.has = &t.local, local
		if t.all[usable]+t.all[lastResort] > 0 {
			ifEmpty = Drop
		}
	}
	c.class = usable
	switch {
	case among[usable] == 0 && among[lastResort] > 0:
		c.class = lastResort
	case s == Cluster:
		c.has = t.hinted()
	}
	return c, ifEmpty
}

// hinted is the hint that all backends must have. Hints count when every usable
// endpoint has some and one of them means this node; those for nodes before
// those for zones.
func (t *tally) hinted() condition {
	switch all := t.all[usable]; {
	case t.nodeHint == all && t.hintsNode > 0:
		return hintsNode
	case t.zoneHint == all && t.hintsHere > 0:
		return hintsHere
	}
	return 0
}

// takes says whether an endpoint of that condition is a backend.
func (c choice) takes(e condition) bool { return e.class() == c.class && e&c.has == c.has }
