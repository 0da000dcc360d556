// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/plain"
	"k8s.io/apimachinery/pkg/types"
)

// This file describes the state to people. The decisions are those of tally.choose, choice.use and decide.go.

// ServiceView is a Service with all that it leads to.
type ServiceView struct {
	Namespace      string     `json:"namespace"`
	Name           string     `json:"name"`
	InternalPolicy string     `json:"internalTrafficPolicy"`
	ExternalPolicy string     `json:"externalTrafficPolicy"`
	Affinity       uint32     `json:"affinitySeconds,omitempty"`
	Limits         string     `json:"limits,omitempty"` // of connections, in words
	Ports          []PortView `json:"ports"`
}

// PortView is a port of a Service in one address family.
type PortView struct {
	Name      string         `json:"name"`
	Family    string         `json:"family"`
	Protocol  string         `json:"protocol"`
	Frontends []FrontendView `json:"frontends"`
	Pools     []PoolView     `json:"pools"`
	Endpoints []EndpointView `json:"endpoints,omitempty"` // only if they were asked for
	Total     int            `json:"totalEndpoints"`      // those in EndpointSlices
	Ready     int            `json:"readyEndpoints"`
	Slices    int            `json:"endpointSlices"`       // of the Service, in this family
	Portless  int            `json:"endpointsWithoutPort"` // those in slices that lack the port
}

// Fewest returns the number of backends of the pool that has the fewest; -1 without any pool.
func (v *ServiceView) Fewest() int {
	n := -1
	for _, p := range v.Ports {
		for _, pool := range p.Pools {
			if n < 0 || pool.Backends < n {
				n = pool.Backends
			}
		}
	}
	return n
}

// FrontendView is a frontend that a port has or claims.
type FrontendView struct {
	Key     FrontendKey `json:"-"`
	Address string      `json:"address"` // "10.96.0.10:80/TCP"
	Kind    string      `json:"kind"`
	Owner   string      `json:"owner,omitempty"` // the Service that has the frontend instead
	// Served are the addresses and ports that serve a NodePort; none if no address of the node does.
	Served []string `json:"servedAt,omitempty"`
	// Sources are the only clients that may connect, or "none"; "" if all may.
	Sources string `json:"sourceRanges,omitempty"`
	Passes  bool   `json:"passedOn,omitempty"` // packets from outside, by the node's routes ([AnnotationFailover])
}

// Addresses are those that clients connect to.
func (v *FrontendView) Addresses() []string {
	if len(v.Served) > 0 {
		return v.Served
	}
	return []string{v.Address}
}

// PoolView is a pool of a port.
type PoolView struct {
	Scope    string `json:"scope"`
	Takes    string `json:"takes"` // which endpoints
	Backends int    `json:"backends"`
	IfEmpty  string `json:"ifEmpty,omitempty"` // what happens to connections, if there are no backends
	Empty    Empty  `json:"empty,omitempty"`   // why there are none
	// EmptySince is since when, or nil if the proxy has not seen one. Who has a clock sets it.
	EmptySince *time.Time `json:"emptySince,omitempty"`
	ID         PoolID     `json:"-"`
	scope      Scope
	Algorithm  string `json:"algorithm"`
}

// EndpointView is an endpoint in the EndpointSlices of a Service.
type EndpointView struct {
	Backend     `json:"-"`
	Address     string            `json:"address"` // "10.244.1.10:8080"
	Zone        string            `json:"zone,omitempty"`
	Here        bool              `json:"here"` // on this node
	Node        string            `json:"node"` // the name of this node, or another, or unknown
	Ready       bool              `json:"ready"`
	Serving     bool              `json:"serving"`
	Terminating bool              `json:"terminating"`
	Weight      uint8             `json:"weight"`
	Use         map[string]string `json:"use"`               // by scope of the pool: used, or why not
	Warming     uint8             `json:"warming,omitempty"` // the percentage of its weight that it has, if it became ready a short time ago
}

// ViewServices calls visit with the Services that are proxied and that a filter, if not nil, selects, in no order.
func (s *State) ViewServices(filter func(types.NamespacedName) bool, endpoints bool, visit func(*ServiceView)) {
	for name, svc := range s.services {
		if svc.spec != nil && (filter == nil || filter(name)) {
			visit(s.viewService(svc, endpoints))
		}
	}
}

func (s *State) viewService(svc *service, endpoints bool) *ServiceView {
	internal, _ := svc.spec.policy.scopes(ClusterIP)
	_, external := svc.spec.policy.scopes(ExternalIP)
	v := &ServiceView{
		Namespace: svc.name.Namespace, Name: svc.name.Name, Affinity: svc.spec.affinity, Limits: svc.limits().String(),
		InternalPolicy: internal.String(), ExternalPolicy: external.String(),
	}
	for _, port := range svc.ports {
		for _, e := range port.endpoints {
			if e != nil {
				v.Ports = append(v.Ports, s.viewPort(svc, e, endpoints))
			}
		}
	}
	return v
}

func (s *State) viewPort(svc *service, e *endpoints, withEndpoints bool) PortView {
	v := PortView{
		Name: e.port.name.String(), Family: e.family.String(), Protocol: e.port.protocol.String(),
		Ready: int(e.tally.all[usable]),
	}
	s.eachClaim(svc.spec, []*port{e.port}, func(key FrontendKey, kind AddressKind, _ *port) {
		f := s.frontends[key]
		if FamilyOf(key.Addr()) != e.family || f == nil || len(f.claims) == 0 {
			return
		}
		view := FrontendView{Key: key, Address: key.String(), Kind: kind.String()}
		if winner := f.claims[0].port; winner.service != svc {
			view.Owner = winner.name.String()
		} else {
			view.Passes = f.reported != nil && f.reported.Passes
		}
		for e, nodePort := range s.overrides(f) {
			switch winner, loser := rank(e, nodePort); {
			case loser != f.claims[0] || winner.port.service == svc:
			case f == e:
				view.Owner = winner.port.name.String()
			default:
				v.Frontends = append(v.Frontends, FrontendView{Key: e.key, Address: e.key.String(), Kind: kind.String(), Owner: winner.port.name.String()})
			}
		}
		if key.OnNode() {
			for _, to := range s.destinations(f) {
				view.Served = append(view.Served, to.String())
			}
		}
		if ranges := svc.spec.sources[e.family]; kind == LoadBalancerIP && ranges != nil {
			view.Sources = cmp.Or(strings.Trim(fmt.Sprint(ranges.All()), "[]"), "none")
		}
		v.Frontends = append(v.Frontends, view)
	})
	var choices [scopes]choice
	var verdicts [scopes]Verdict
	for scope := range Scope(scopes) {
		p := e.poolIn(scope)
		if p == nil {
			continue
		}
		c, ifEmpty := e.tally.choose(scope, svc.spec)
		choices[scope], verdicts[scope] = c, ifEmpty
		view := PoolView{ID: p.id, scope: scope, Scope: scope.String(), Takes: c.String(), Algorithm: s.algorithm(svc).String()}
		for i := range e.entries {
			if en := &e.entries[i]; en.listed > 0 && c.takes(en.cond) && !p.ejected[en.backend] {
				view.Backends++
			}
		}
		if view.Backends == 0 {
			view.IfEmpty = ifEmpty.String()
		}
		v.Pools = append(v.Pools, view)
	}
	zoneOf := map[Backend]string{}
	for _, sl := range svc.slices {
		if sl.family == e.family {
			v.Slices++
		}
		common, all := sl.endpointsFor(e)
		if common.port == 0 && e.port.last == 0 && sl.family == e.family {
			v.Portless += len(sl.endpoints)
		}
		for _, x := range all {
			if withEndpoints {
				zoneOf[Backend{x.ip, common.port}] = sl.zones.get(x.zones).own
			}
		}
	}
	for i := range e.entries {
		en := &e.entries[i]
		if en.listed == 0 {
			continue
		}
		v.Total++
		if !withEndpoints {
			continue
		}
		view := s.viewEntry(en)
		view.Warming = 10 * e.warming[en.backend].tenths
		view.Zone = plain.Line(zoneOf[en.backend], 63) // no limit of the API
		for scope := range Scope(scopes) {
			p := e.poolIn(scope)
			if p == nil {
				continue
			}
			use := choices[scope].use(en.cond)
			if use == Used && p.ejected[en.backend] {
				use = Ejected
			}
			if use != Used && en.weight == 0 {
				use = WithoutWeight // a weight of 0 makes an endpoint unusable
			}
			view.Use[scope.String()] = use.String()
		}
		v.Endpoints = append(v.Endpoints, view)
	}
	for i := range v.Pools {
		if p := &v.Pools[i]; p.Backends == 0 {
			p.Empty = whyEmpty(&v, verdicts[p.scope] == Drop)
		}
	}
	slices.SortFunc(v.Endpoints, func(a, b EndpointView) int { return a.Compare(b.Backend) })
	return v
}

func (s *State) viewEntry(en *entry) EndpointView {
	has := func(c condition) bool { return en.cond&c != 0 }
	v := EndpointView{
		Backend: en.backend, Address: en.backend.String(), Node: "another", Weight: en.weight, Use: map[string]string{},
		Ready: has(ready), Serving: has(serving), Terminating: has(terminating),
	}
	switch {
	case has(local):
		v.Here, v.Node = true, s.config.NodeName
	case has(maybeLocal):
		v.Node = "unknown"
	}
	return v
}

// Counts are numbers of objects in a State.
type Counts struct {
	Services  int `json:"services"`
	Unserved  int `json:"servicesWithoutEndpoints"` // those with a port that has no endpoint to use
	Frontends int `json:"frontends"`
	Pools     int `json:"pools"`
	Endpoints int `json:"endpoints"` // of all Service ports
}

// Counts returns the numbers of what has been reported.
func (s *State) Counts() Counts {
	c := Counts{Services: s.proxied}
	for _, f := range s.frontends {
		if f.reported != nil {
			c.Frontends++
		}
	}
	unserved := map[*service]bool{}
	for _, p := range s.pools {
		if p != nil && p.reported && p.kind != passing {
			c.Pools++
			if !slices.ContainsFunc(p.of.entries, func(e entry) bool { return p.takes(&e) }) {
				unserved[p.of.port.service] = true
			}
			if first := slices.IndexFunc(p.of.pools[:], func(p *pool) bool { return p != nil }); p.of.pools[first] == p {
				c.Endpoints += len(p.of.entries)
			}
		}
	}
	c.Unserved = len(unserved)
	return c
}

// Uses joins the uses in the pools of both scopes, if they differ.
func (v *EndpointView) Uses() string {
	cluster, local := v.Use[Cluster.String()], v.Use[Local.String()]
	uses := "Cluster: " + cluster + ", Local: " + local
	switch {
	case cluster == local || local == "":
		uses = cluster
	case cluster == "":
		uses = local
	}
	if v.Warming > 0 {
		uses += fmt.Sprintf(", warming: %d %%", v.Warming)
	}
	return uses
}
