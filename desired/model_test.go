// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// model is a kernel that is programmed by Changes and checks each as strictly as
// nf_tables would: what is added must not be there, what is removed must be.
type model struct {
	frontends  map[FrontendKey]Frontend
	pools      map[PoolID]*modelPool
	clusterIPs map[netip.Addr]bool
	hairpins   map[netip.Addr]bool
}

type modelPool struct {
	service  ServicePort
	family   Family
	ifEmpty  Verdict
	backends map[Backend]bool
}

func newModel() *model {
	return &model{map[FrontendKey]Frontend{}, map[PoolID]*modelPool{}, map[netip.Addr]bool{}, map[netip.Addr]bool{}}
}

// apply takes a change in; the error says what does not fit.
func (m *model) apply(c *Change) (err error) {
	wrong := func(format string, args ...any) {
		if err == nil {
			err = fmt.Errorf(format, args...)
		}
	}
	for _, p := range c.Pools {
		pool := m.pools[p.ID]
		if p.New {
			if pool != nil {
				wrong("pool %d of %s is new but there", p.ID, p.Service)
			}
			pool = &modelPool{p.Service, p.Family, p.IfEmpty, map[Backend]bool{}}
			m.pools[p.ID] = pool
		}
		if pool == nil {
			wrong("pool %d of %s is not there", p.ID, p.Service)
			continue
		}
		for _, b := range p.Removed {
			if !pool.backends[b] {
				wrong("%s is removed from pool %s but not there", b, p.Service)
			}
			delete(pool.backends, b)
		}
		for _, b := range p.Added {
			if pool.backends[b] {
				wrong("%s is added to pool %s but there", b, p.Service)
			}
			pool.backends[b] = true
		}
		pool.ifEmpty = p.IfEmpty
		if p.Gone {
			if len(pool.backends) > 0 {
				wrong("pool %s is gone but has backends", p.Service)
			}
			delete(m.pools, p.ID)
		}
	}
	for _, f := range c.Frontends {
		there, ok := m.frontends[f.Key()]
		if ok != (f.Old != nil) || ok && there != *f.Old {
			wrong("frontend %s: old is %v, but there is %v", f.Key(), f.Old, there)
		}
		delete(m.frontends, f.Key())
		if f.New != nil {
			m.frontends[f.Key()] = *f.New
		}
	}
	for _, f := range m.frontends {
		if m.pools[f.Pool] == nil {
			wrong("frontend %s leads to pool %d, which is not there", f.FrontendKey, f.Pool)
		}
	}
	addresses := func(what string, set map[netip.Addr]bool, c AddressChange) {
		for _, a := range c.Removed {
			if !set[a] {
				wrong("%s %s is removed but not there", what, a)
			}
			delete(set, a)
		}
		for _, a := range c.Added {
			if set[a] {
				wrong("%s %s is added but there", what, a)
			}
			set[a] = true
		}
	}
	addresses("ClusterIP", m.clusterIPs, c.ClusterIPs)
	addresses("hairpin address", m.hairpins, c.HairpinIPs)
	return err
}

// String is the content with nothing left of IDs or order.
func (m *model) String() string {
	var lines []string
	for _, f := range m.frontends {
		p := m.pools[f.Pool]
		if p == nil {
			lines = append(lines, fmt.Sprintf("%s -> pool %d is missing", f.FrontendKey, f.Pool))
			continue
		}
		lines = append(lines, fmt.Sprintf("%s %s %s -> %s %s %s", f.FrontendKey, f.Kind, f.Service, p.service, p.ifEmpty, names(p.backends)))
	}
	for _, p := range m.pools {
		lines = append(lines, fmt.Sprintf("pool %s %s %s %s", p.service, p.family, p.ifEmpty, names(p.backends)))
	}
	slices.Sort(lines)
	return strings.Join(append(lines, "ClusterIPs "+names(m.clusterIPs), "hairpin "+names(m.hairpins)), "\n")
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
