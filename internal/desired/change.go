// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/slipstream-proxy/slipstream/internal/plain"
	"k8s.io/apimachinery/pkg/types"
)

// PoolID identifies a pool. The ID of a deleted pool is reused, but never within one Change.
type PoolID uint32

// Update is the difference between two contents, with one part for each consumer.
type Update struct {
	// Change is for dataplanes. The other parts apply once it is in effect.
	Change

	// Health lists the health checks of load balancers that have a new answer.
	Health []HealthCheck

	// Relays lists the NodePorts on loopback addresses that are served otherwise than before.
	Relays []Relay

	// Flows lists the conntrack entries that the Change made stale. Each is in one Update only.
	Flows []StaleFlows

	// AllFlows lists those of all frontends, in a full content. They are to be deleted after Flows.
	AllFlows []StaleFlows

	// Problems lists parts of objects that are not programmed. Each is in one Update only.
	Problems []Problem
}

// Change is what a dataplane programs. Its parts take effect together.
type Change struct {
	Frontends []FrontendChange
	Pools     []PoolChange

	// Rebuild says that Local or Masquerade changed. Only Full describes the new
	// content, and the rest of the Change is empty.
	Rebuild bool

	// Local says how to recognize traffic from this node's pods, Masquerade which
	// traffic is masqueraded. They stay the same until a Rebuild.
	Local      LocalTraffic
	Masquerade MasqueradePolicy

	// Ranges says that there are frontends with ranges, or have been since the start. A change can begin it.
	Ranges bool

	Sets [Sets]SetChange
}

// Empty reports whether there is nothing to program.
func (c *Change) Empty() bool {
	for _, set := range c.Sets {
		if len(set.Added)+len(set.Removed) > 0 {
			return false
		}
	}
	return !c.Rebuild && len(c.Frontends) == 0 && len(c.Pools) == 0
}

// FrontendChange is a frontend that was added (Old is nil), deleted (New is nil) or changed.
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

// PoolChange is the difference in a pool. The lists of backends are unordered, and Added and Removed are disjoint.
type PoolChange struct {
	ID      PoolID
	Service ServicePort // the Service port that has the endpoints, for comments and messages
	Family  Family
	Scope   Scope
	IPVS    bool   // IPVS serves the pool, by the virtual servers of frontends ([Frontend.VirtualServer])
	Sibling PoolID // the pool of the other Scope, or NoPool
	Sticky  bool   // frontends of the pool have an Affinity; never changes for a pool
	Shared  bool   // they are [Frontend.Shared]; never changes for a pool
	Range   bool   // they are of a range; never changes for a pool
	Added   []Backend
	Removed []Backend
	IfEmpty Verdict
	Balance

	// Weights lists backends whose weight differs from before. A backend that was added
	// has DefaultWeight unless it is listed.
	Weights []Weight

	New     bool // the pool was added
	Partial bool // other backends follow with further changes, for which a table of slots can wait
	Gone    bool // the pool was deleted; Removed lists the backends that it had
}

// Balance is how a pool's backend is chosen for a new connection.
type Balance struct {
	Algorithm Algorithm
	TableSize uint32 // number of slots, if the algorithm has a table
}

// Scope says which endpoints a pool can choose from.
type Scope uint8

// The scopes of pools.
const (
	// Cluster is all endpoints of the cluster, filtered by topology hints.
	Cluster Scope = iota
	// Local is the endpoints on this node.
	Local
	scopes = 2
)

// String is "Cluster" or "Local".
func (s Scope) String() string { return [...]string{"Cluster", "Local"}[s] }

// Verdict is what happens to traffic for a pool without backends.
type Verdict uint8

// The verdicts for an empty pool.
const (
	// Reject answers with a TCP reset or an ICMP error.
	Reject Verdict = iota
	// Drop discards packets silently: there are endpoints, but the traffic policy excludes all of them on this node.
	Drop
	// Pass leaves packets to the node's routes ([AnnotationFailover]).
	Pass
)

// String is "reject", "drop" or "pass".
func (v Verdict) String() string { return [...]string{"reject", "drop", "pass"}[v] }

// Problem is a part of an object that cannot be programmed, and the reason. The rest
// of the object and all other objects are not affected.
type Problem struct {
	Object string // "Service default/web"
	Field  string // "spec.clusterIPs[0]"
	Reason string

	Service   types.NamespacedName // the Object, if it is a Service
	Contested bool                 // another Service has the frontend
}

// addProblem reports a problem. Its parts have text of others, such as values of annotations.
func (s *State) addProblem(p Problem) {
	const limit = 300 // bytes
	p.Object, p.Field, p.Reason = plain.Line(p.Object, limit), plain.Line(p.Field, limit), plain.Line(p.Reason, limit)
	s.problems = append(s.problems, p)
}

// object identifies a Service or an EndpointSlice.
type object struct {
	kind string
	name types.NamespacedName
}

// mostProblems is how many problems of one version of an object are reported, the first ones.
const mostProblems = 20

// onlyNew drops those of the last problems, which an object has, that its last version had too.
func (s *State) onlyNew(of object, from int) {
	now := slices.Clone(s.problems[from:min(len(s.problems), from+mostProblems)])
	s.problems = append(s.problems[:from], subtract(now, s.told[of])...)
	if len(now) > 0 {
		s.told[of] = now
	} else {
		delete(s.told, of)
	}
}

// Error is the problem in one line.
func (p Problem) Error() string { return fmt.Sprintf("%s: %s: %s", p.Object, p.Field, p.Reason) }

// Services returns the Services whose frontends and pools the change adds or modifies, in order.
func (c *Change) Services() (all []types.NamespacedName) {
	for i := range c.Pools {
		all = append(all, c.Pools[i].Service.Owner())
	}
	for _, f := range c.Frontends {
		if f.New != nil {
			all = append(all, f.New.Service.Owner())
		}
	}
	slices.SortFunc(all, func(a, b types.NamespacedName) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return slices.Compact(all)
}
