// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// model stands for a kernel that is programmed by Changes. It is as strict as nf_tables:
// what is added must not exist, and what is removed must exist.
type model struct {
	frontends map[FrontendKey]Frontend
	pools     map[PoolID]*modelPool
	health    map[types.NamespacedName]HealthCheck
	local     LocalTraffic
	relays    map[FrontendKey]string
	sets      [Sets]map[Member]bool
}

type modelPool struct {
	service  ServicePort
	family   Family
	scope    Scope
	ipvs     bool
	sticky   bool
	ifEmpty  Verdict
	backends map[Backend]bool
	balance  Balance
	weights  map[Backend]uint64 // other than DefaultWeight
	partial  bool
}

func newModel() *model {
	m := &model{frontends: map[FrontendKey]Frontend{}, pools: map[PoolID]*modelPool{}, health: map[types.NamespacedName]HealthCheck{}, relays: map[FrontendKey]string{}}
	for set := range m.sets {
		m.sets[set] = map[Member]bool{}
	}
	return m
}

// apply applies a change. The error describes the first inconsistency.
func (m *model) apply(c *Update) (err error) {
	wrong := func(format string, args ...any) {
		if err == nil {
			err = fmt.Errorf(format, args...)
		}
	}
	for _, p := range c.Pools {
		pool := m.pools[p.ID]
		if p.New {
			if pool != nil {
				wrong("pool %d of %s is new but exists", p.ID, p.Service)
			}
			pool = &modelPool{p.Service, p.Family, p.Scope, p.IPVS, p.Sticky, p.IfEmpty, map[Backend]bool{}, p.Balance, map[Backend]uint64{}, false}
			m.pools[p.ID] = pool
		}
		if pool == nil {
			wrong("pool %d of %s does not exist", p.ID, p.Service)
			continue
		}
		if pool.service != p.Service || pool.family != p.Family || pool.scope != p.Scope || pool.ipvs != p.IPVS || pool.sticky != p.Sticky {
			wrong("pool %d of %s changed its description", p.ID, p.Service)
		}
		for _, b := range p.Removed {
			if !pool.backends[b] {
				wrong("%s is removed from pool %s but not in it", b, p.Service)
			}
			delete(pool.backends, b)
			delete(pool.weights, b)
		}
		for _, b := range p.Added {
			if pool.backends[b] {
				wrong("%s is added to pool %s but already in it", b, p.Service)
			}
			pool.backends[b] = true
		}
		for _, w := range p.Weights {
			switch was, has := pool.weights[w.Backend]; {
			case !pool.backends[w.Backend] || w.Weight == 0:
				wrong("%s has weight %d in pool %s, which does not have it", w.Backend, w.Weight, p.Service)
			case has && was == w.Weight || !has && w.Weight == DefaultWeight:
				wrong("%s has weight %d in pool %s already", w.Backend, w.Weight, p.Service)
			case w.Weight == DefaultWeight:
				delete(pool.weights, w.Backend)
			default:
				pool.weights[w.Backend] = w.Weight
			}
		}
		pool.ifEmpty, pool.balance, pool.partial = p.IfEmpty, p.Balance, p.Partial
		if p.Gone {
			if len(pool.backends) > 0 {
				wrong("pool %s is deleted but has backends", p.Service)
			}
			delete(m.pools, p.ID)
		}
	}
	for _, r := range c.Relays {
		if delete(m.relays, r.FrontendKey); r.Service != (ServicePort{}) {
			weights := map[Backend]uint64{}
			for _, w := range r.Weights {
				weights[w.Backend] = w.Weight
			}
			m.relays[r.FrontendKey] = fmt.Sprintf("%s %d %s %v %v, flows to %s", r.Service, r.Affinity, sortedBackends(r.Backends), r.Balance, weights, sortedBackends(r.Serving))
		}
	}
	for _, p := range c.Pools {
		if p.New && p.Sibling != NoPool {
			if other := m.pools[p.Sibling]; other == nil || other.service != p.Service || other.family != p.Family || other.scope == p.Scope || other.ipvs != p.IPVS {
				wrong("pool %d of %s has the sibling %d, which is %s", p.ID, p.Service, p.Sibling, other)
			}
		}
	}
	for _, f := range c.Frontends {
		there, ok := m.frontends[f.Key()]
		if ok != (f.Old != nil) || ok && there != *f.Old {
			wrong("frontend %s: old is %v, but the kernel has %v", f.Key(), f.Old, there)
		}
		if f.Old != nil && f.New != nil && sameMeaning(*f.Old, *f.New) {
			wrong("frontend %s is reported although it did not change", f.Key())
		}
		delete(m.frontends, f.Key())
		if f.New != nil {
			m.frontends[f.Key()] = *f.New
		}
	}
	for _, f := range m.frontends {
		for _, id := range []PoolID{f.Pool, f.LocalPool} {
			switch p := m.pools[id]; {
			case id == NoPool:
			case p == nil:
				wrong("frontend %s has pool %d, which does not exist", f.FrontendKey, id)
			case p.service != f.Service || p.family != FamilyOf(f.Addr()) || p.sticky != (f.Affinity != 0),
				p.ipvs != (id == f.VirtualServer()) && !(f.Passes && len(p.backends) == 0):
				wrong("frontend %s of %s has a pool of %s", f.FrontendKey, f.Service, p.service)
			}
		}
	}
	for set, has := range m.sets {
		for member, added := range c.Sets[set].All() {
			if has[member] == added {
				wrong("%s %s: added %t, existed %t", Set(set), member, added, has[member])
			}
			if added && member.Bits != 0 {
				for other := range has {
					if member.Prefix().Overlaps(other.Prefix()) {
						wrong("ServiceCIDR %s is added beside %s", member, other)
					}
				}
			}
			if has[member] = true; !added {
				delete(has, member)
			}
		}
	}
	for _, h := range c.Health {
		if h.Port == 0 {
			delete(m.health, h.Service)
		} else {
			m.health[h.Service] = h
		}
	}
	for _, stale := range slices.Concat(c.Flows, c.AllFlows) {
		if stale.Protocol == TCP && stale.Only || len(stale.Frontends) == 0 {
			wrong("flows of %v are stale", stale)
		}
		for _, key := range stale.Frontends {
			_, owned := m.owner(key)
			itself := stale.Only && slices.Contains(stale.Backends, itself(key))
			if !owned && !itself || key.OnNode() || key.Protocol != stale.Protocol {
				wrong("flows to %s are stale, but no such frontend exists", key)
			}
		}
	}
	for key := range m.frontends {
		lists := func(f StaleFlows) bool { return f.Protocol == TCP && slices.Contains(f.Frontends, key) }
		if want := c.AllFlows != nil && key.Protocol == TCP && !key.OnNode(); want != slices.ContainsFunc(c.AllFlows, lists) {
			wrong("all flows have those of %s: %t", key, !want)
		}
	}
	m.local = c.Local
	return err
}

// sameMeaning compares frontends, and their source ranges by value.
func sameMeaning(a, b Frontend) bool {
	same := fmt.Sprint(a.Sources) == fmt.Sprint(b.Sources)
	a.Sources, b.Sources = nil, nil
	return same && a == b
}

// step applies the state's next change, or its full content if the change is a Rebuild.
func (m *model) step(s *State, flows *modelFlows) error {
	c := s.Change()
	if c.Rebuild {
		*m = *newModel()
		c = s.Full()
	}
	if err := m.apply(c); err != nil {
		return err
	}
	if err := flows.check(s, m, c); err != nil {
		return err
	}
	for _, p := range m.pools {
		if p.partial && !slices.Contains(s.Partial(), p.service) {
			return fmt.Errorf("%s has all its backends, but was not told so", p)
		}
	}
	ports := map[Member]bool{}
	for _, h := range m.health {
		for f, serves := range h.Serves {
			if serves {
				ports[PortOf(Family(f), TCP, h.Port)] = true
			}
		}
	}
	if !maps.Equal(ports, m.sets[HealthPorts]) {
		return fmt.Errorf("health ports are %v; want %v", m.sets[HealthPorts], ports)
	}
	return nil
}

// String is the content without IDs, in canonical order.
func (m *model) String() string {
	var lines []string
	for _, f := range m.frontends {
		lines = append(lines, fmt.Sprintf("%s %s %s %d %v %t %s %t %v %t -> %s, from outside %s", f.FrontendKey, f.Kind, f.Service, f.Affinity, f.Sources, f.SlowPath, f.Scheduler, f.IPVS, f.Limits, f.Passes, m.pools[f.Pool], m.pools[f.LocalPool]))
	}
	for _, p := range m.pools {
		lines = append(lines, p.String())
	}
	for key, r := range m.relays {
		lines = append(lines, fmt.Sprintf("relay %s -> %s", key, r))
	}
	for _, h := range m.health {
		lines = append(lines, fmt.Sprintf("%+v", h))
	}
	lines = append(lines, fmt.Sprintf("local traffic %+v", m.local))
	for set, has := range m.sets {
		lines = append(lines, Set(set).String()+" "+names(has))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func (p *modelPool) String() string {
	if p == nil {
		return "no other pool"
	}
	return fmt.Sprintf("pool %s %s %s %t %t %s %s %v %v", p.service, p.family, p.scope, p.ipvs, p.sticky, p.ifEmpty, names(p.backends), p.balance, p.weights)
}

// String is the ranges.
func (s *SourceRanges) String() string {
	if s == nil {
		return "all clients"
	}
	return fmt.Sprint(s.ranges)
}

func sortedBackends(all []Backend) []Backend {
	return slices.SortedFunc(slices.Values(all), Backend.Compare)
}

func names[T interface {
	comparable
	fmt.Stringer
}](set map[T]bool) string {
	var all []string
	for k := range maps.Keys(set) {
		all = append(all, k.String())
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// itself is the destination of a flow that is not translated. Those in a range have no port.
func itself(key FrontendKey) Backend {
	b := NewBackend(key.AddrPort)
	if key.IsRange() {
		b.port = 0
	}
	return b
}
