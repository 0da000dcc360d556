// SPDX-License-Identifier: Apache-2.0

package desired

// This file decides which endpoints of a Service port become its backends. Decisions
// are made from counts (tally), so that their cost does not depend on the number of
// endpoints. All endpoints of a Service port are visited only when its choice changes.

// condition is the state of an endpoint, as bits.
type condition uint16

const (
	ready       condition = 1 << iota // takes new connections
	serving                           // serves, possibly while terminating
	terminating                       // is shutting down
	local                             // is on this node
	maybeLocal                        // is on this node, or its node is unknown
	zoneHint                          // has hints for zones
	zoneMatches                       // has a hint for this node's zone
	nodeHint                          // has hints for nodes
	nodeMatches                       // has a hint for this node
	inZone                            // is in this node's zone

	conditionBits = iota
)

// class says whether an endpoint may take new connections.
type class uint8

const (
	unusable class = iota
	lastResort
	usable
	classes
)

// class returns the class of an endpoint. Terminating endpoints that still serve are
// the last resort (KEP-1669). Other endpoints that are not ready are unusable.
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
	zone  [classes]int32 // in this node's zone

	weighted int32 // with a weight other than DefaultWeight, of any class

	zoneHint, zoneMatches, nodeHint, nodeMatches int32
}

func (t *tally) count(c condition, n int32) {
	class := c.class()
	t.all[class] += n
	if c&local != 0 {
		t.local[class] += n
	}
	if c&inZone != 0 {
		t.zone[class] += n
	}
	if class != usable {
		return
	}
	for _, hint := range []struct {
		bit condition
		sum *int32
	}{{zoneHint, &t.zoneHint}, {zoneMatches, &t.zoneMatches}, {nodeHint, &t.nodeHint}, {nodeMatches, &t.nodeMatches}} {
		if c&hint.bit != 0 {
			*hint.sum += n
		}
	}
}

type policy struct {
	internalLocal bool // internalTrafficPolicy: Local (KEP-2086)
	externalLocal bool // externalTrafficPolicy: Local

	byZone    bool  // connections are divided by zone (AnnotationLocalZone)
	localZone uint8 // percent of them that stay in this node's zone
}

// scopes returns the scopes of a frontend's pools by its kind: the scope for traffic
// from this node and its pods, and the scope for traffic from outside.
func (p policy) scopes(k AddressKind) (pool, fromOutside Scope) {
	switch {
	case !k.External() && p.internalLocal:
		return Local, Local
	case k.External() && p.externalLocal:
		return Cluster, Local
	}
	return Cluster, Cluster
}

// Masquerade says which traffic gets an address of this node as its source address.
type Masquerade uint8

const (
	// MasqueradeNotPods is all traffic except that of this node's pods. If
	// [LocalTraffic] has no criterion, no traffic is masqueraded.
	MasqueradeNotPods Masquerade = iota
	// MasqueradeAlways is all traffic.
	MasqueradeAlways
	// MasqueradeNode is traffic that starts on this node itself, outside of pods.
	MasqueradeNode
)

// MasqueradePolicy says which traffic is masqueraded, by the kind of frontend. Traffic
// from an endpoint to itself is masqueraded in addition ([HairpinIPs]).
type MasqueradePolicy struct {
	ClusterIPs Masquerade // MasqueradeNotPods or MasqueradeAlways
	External   Masquerade // of external frontends without a LocalPool
	Local      Masquerade // of external frontends with a LocalPool
}

func (c *Config) masquerade() MasqueradePolicy {
	m := MasqueradePolicy{ClusterIPs: MasqueradeNotPods, External: MasqueradeAlways, Local: MasqueradeNode}
	if c.MasqueradeAll {
		m.ClusterIPs = MasqueradeAlways
	}
	return m
}

// choice is the criterion by which endpoints are chosen as backends.
type choice struct {
	class class
	has   condition // bits that an endpoint must have
	lacks condition // bits that it must not have
}

// choose returns the choice for a pool. It takes all endpoints of the best class that
// is not empty. In the Cluster scope, hints narrow them (KEP-2433, KEP-3015), unless the Service
// says otherwise. spec is nil for a Service that was deleted.
func (t *tally) choose(s Scope, spec *serviceSpec) (c choice, ifEmpty Verdict) {
	among := &t.all
	if s == Local {
		among, c.has = &t.local, local
		if t.all[usable]+t.all[lastResort] > 0 {
			ifEmpty = Drop
		}
	}
	c.class = usable
	if among[usable] == 0 && among[lastResort] > 0 {
		c.class = lastResort
	}
	switch here := t.zone[c.class]; {
	case s == Local || spec == nil:
	case spec.Nearest && t.local[c.class] > 0:
		c.has = local
	case spec.Nearest && here > 0:
		c.has = inZone
	case spec.Nearest:
	case spec.policy.byZone && spec.policy.localZone == 100 && here > 0:
		c.has = inZone
	case spec.policy.byZone && spec.policy.localZone == 0 && here < t.all[c.class]:
		c.lacks = inZone
	case spec.policy.byZone: // by weights
	case c.class == usable:
		c.has = t.hinted()
	}
	return c, ifEmpty
}

// hinted returns the hint that all backends must have, or 0. Hints apply if every usable endpoint has them and at least
// one is for this node or its zone. Hints for nodes take precedence over hints for zones.
func (t *tally) hinted() condition {
	switch all := t.all[usable]; {
	case t.nodeHint == all && t.nodeMatches > 0:
		return nodeMatches
	case t.zoneHint == all && t.zoneMatches > 0:
		return zoneMatches
	}
	return 0
}

func (c choice) takes(e condition) bool { return c.use(e) == Used }

// Use says whether a pool uses an endpoint or, otherwise, the first criterion that the endpoint does not meet.
type Use uint8

// The uses of an endpoint.
const (
	Used Use = iota
	NotReady
	Terminating      // used only if it serves and none is ready
	NotLocal         // not on this node
	OtherZone        // not in this node's zone
	HintForOtherZone // its hints are for other zones
	HintForOtherNode // its hints are for other nodes
	InAvoidedZone    // in this node's zone, from which the Service sends all connections away
	WithoutWeight    // its EndpointSlice has the weight 0
	Ejected          // it does not answer
)

// String is the reason in a few words.
func (u Use) String() string {
	return [...]string{"used", "not ready", "terminating", "not on this node", "in another zone", "hints for other zones", "hints for other nodes",
		"in this zone, which gets 0 %", "weight 0", "ejected: it does not answer"}[u]
}

// use makes the decision about an endpoint.
func (c choice) use(e condition) Use {
	class, missing := e.class(), c.has&^e
	switch {
	case class == unusable && e&terminating != 0:
		return Terminating
	case class == unusable:
		return NotReady
	case missing&local != 0:
		return NotLocal
	case missing&inZone != 0:
		return OtherZone
	case missing&zoneMatches != 0:
		return HintForOtherZone
	case missing&nodeMatches != 0:
		return HintForOtherNode
	case e&c.lacks != 0:
		return InAvoidedZone
	case class != c.class:
		return Terminating
	}
	return Used
}

// String says which endpoints the choice takes.
func (c choice) String() string {
	s := "ready endpoints"
	if c.class == lastResort {
		s = "terminating endpoints that still serve, as none is ready,"
	}
	switch {
	case c.has&local != 0:
		s += " on this node"
	case c.has&inZone != 0:
		s += " in this node's zone"
	case c.has&zoneMatches != 0:
		s += " with a hint for this node's zone"
	case c.has&nodeMatches != 0:
		s += " with a hint for this node"
	case c.lacks&inZone != 0:
		s += " outside this node's zone"
	}
	return s
}
