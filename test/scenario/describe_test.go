// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// describer describes one node's changes in a story's words. It keeps the scope of each
// pool, as a change names pools that it does not describe.
type describer struct {
	scopes map[desired.PoolID]desired.Scope
}

// full describes the whole content, which replaces the previous one.
func (d *describer) full(c *desired.Update) string {
	d.scopes = nil
	d.learn(c)
	lines := []string{"everything anew; pods are known by " + local(c.Local)}
	for _, p := range c.Problems {
		lines = append(lines, "problem: "+p.Error())
	}
	return strings.Join(lines, "\n")
}

// change describes a change in sorted lines, with the names of pools instead of
// their IDs.
func (d *describer) change(c *desired.Update) string {
	d.learn(c)
	var lines []string
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	for _, f := range c.Frontends {
		switch {
		case f.Old == nil:
			add("frontend %s: new, %s", f.Key(), d.frontend(f.New))
		case f.New == nil:
			add("frontend %s: gone", f.Key())
		default:
			add("frontend %s: now %s", f.Key(), d.frontend(f.New))
		}
	}
	for _, p := range c.Pools {
		add("%s", pool(p))
	}
	for _, set := range []desired.Set{desired.NodeAddresses, desired.ServiceCIDRs, desired.RefusedNodePorts} {
		for m, added := range c.Sets[set].All() {
			add("%s %s: %s", set, m, map[bool]string{true: "new", false: "gone"}[added])
		}
	}
	for _, r := range c.Relays {
		add("relay %s: %s", r.FrontendKey, relay(r))
	}
	for _, h := range c.Health {
		add("health check %s: %s", h.Service, healthCheck(h))
	}
	for _, f := range c.Flows {
		add("stale %s flows of %s", f.Protocol, staleFlows(f))
	}
	for _, p := range c.Problems {
		add("problem: %s", p.Error())
	}
	slices.Sort(lines)
	if len(lines) == 0 {
		return "nothing changed"
	}
	return strings.Join(lines, "\n")
}

func (d *describer) learn(c *desired.Update) {
	if d.scopes == nil {
		d.scopes = map[desired.PoolID]desired.Scope{}
	}
	for _, p := range c.Pools {
		if !p.Gone {
			d.scopes[p.ID] = p.Scope
		}
	}
}

// frontend describes a frontend, without its key.
func (d *describer) frontend(f *desired.Frontend) string {
	s := fmt.Sprintf("%s of %s", f.Kind, f.Service)
	switch {
	case f.Passes:
		s += ", passed on when external"
	case f.LocalPool != desired.NoPool:
		s += ", local when external"
	case d.scopes[f.Pool] == desired.Local:
		s += ", local"
	}
	if f.Affinity > 0 {
		s += fmt.Sprintf(", affinity %ds", f.Affinity)
	}
	if f.Sources != nil {
		s += ", from " + list(f.Sources.All())
	}
	return s
}

func pool(p desired.PoolChange) string {
	name := fmt.Sprintf("pool %s %s", p.Service, p.Family)
	if p.Scope == desired.Local {
		name += " " + p.Scope.String()
	}
	if p.Gone {
		return name + ": gone"
	}
	var parts []string
	if p.New {
		parts = append(parts, "new")
	}
	if s := backends("+", p.Added); s != "" {
		parts = append(parts, s)
	}
	if s := backends("-", p.Removed); s != "" {
		parts = append(parts, s)
	}
	var weights []string
	for _, w := range p.Weights {
		weights = append(weights, fmt.Sprintf("weight %d of %s", w.Weight, w.Backend))
	}
	slices.Sort(weights)
	parts = append(parts, weights...)
	switch {
	case p.IfEmpty == desired.Pass:
		parts = append(parts, "passes")
	case p.IfEmpty == desired.Drop:
		parts = append(parts, "drops when empty")
	case len(parts) == 0:
		parts = append(parts, "rejects when empty again")
	}
	return name + ": " + strings.Join(parts, ", ")
}

func relay(r desired.Relay) string {
	if r.Service == (desired.ServicePort{}) {
		return "gone"
	}
	s := fmt.Sprintf("of %s to [%s]", r.Service, backends("", r.Backends))
	if r.Protocol == desired.UDP {
		s += fmt.Sprintf(", flows to [%s]", backends("", r.Serving))
	}
	if r.Affinity > 0 {
		s += fmt.Sprintf(", affinity %ds", r.Affinity)
	}
	return s
}

func healthCheck(h desired.HealthCheck) string {
	if h.Port == 0 {
		return "gone"
	}
	s := fmt.Sprintf("port %d", h.Port)
	for f, serves := range h.Serves {
		if serves {
			s += fmt.Sprintf(", %d %s", h.LocalEndpoints[f], desired.Family(f))
		}
	}
	return s
}

func staleFlows(f desired.StaleFlows) string {
	var keys []string
	for _, k := range f.Frontends {
		keys = append(keys, k.String())
	}
	slices.Sort(keys)
	s, to := strings.Join(keys, " "), backends("", f.Backends)
	itself := slices.ContainsFunc(f.Frontends, func(k desired.FrontendKey) bool {
		return slices.Contains(f.Backends, desired.NewBackend(k.AddrPort))
	})
	switch {
	case f.Only && to == "":
		return s
	case f.Only && itself:
		return s + " to any endpoint"
	case f.Only:
		return s + " to others than " + to
	}
	return s + " to " + to
}

// local is how a node's pods are recognized.
func local(l desired.LocalTraffic) string {
	switch {
	case l.Iface != "" && l.IsPrefix:
		return "interfaces " + l.Iface + "*"
	case l.Iface != "":
		return "interface " + l.Iface
	}
	var ranges []netip.Prefix
	for _, p := range l.CIDRs {
		if p.IsValid() {
			ranges = append(ranges, p)
		}
	}
	if len(ranges) == 0 {
		return "nothing"
	}
	return list(ranges)
}

func backends(sign string, all []desired.Backend) string {
	var s []string
	for _, b := range slices.SortedFunc(slices.Values(all), desired.Backend.Compare) {
		s = append(s, sign+b.String())
	}
	return strings.Join(s, " ")
}

func list(all []netip.Prefix) string { return strings.Trim(fmt.Sprint(all), "[]") }
