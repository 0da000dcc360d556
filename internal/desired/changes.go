// SPDX-License-Identifier: Apache-2.0

package desired

// Change is what differs from the last Change or Full.
func (s *State) Change() *Update {
	if s.local() != s.toldLocal {
		return &Update{Change: Change{Rebuild: true, Local: s.local()}}
	}
	return s.collect()
}

// collect takes what differs from what was told and counts it as told.
func (s *State) collect() *Update {
	s.toldLocal = s.local()
	c := &Update{Change: Change{Local: s.toldLocal, Masquerade: s.config.masquerade()}, Problems: s.problems}
	s.problems = nil
	for _, p := range s.dirtyPools {
		p.dirty = false
		if pc, differs := p.change(&s.hairpins); differs {
			c.Pools = append(c.Pools, pc)
		}
		s.countLack(p)
		c.Flows = s.staleFlows(c.Flows, p)
	}
	for _, f := range s.dirtyFrontends {
		f.dirty = false
		if fc, differs := f.change(); differs {
			c.Frontends = append(c.Frontends, fc)
			c.Flows = s.newFrontendFlows(c.Flows, fc)
		}
		if len(f.claims) == 0 {
			delete(s.frontends, f.key)
		}
	}
	// IDs are free only now, so that none means two pools in one Change.
	for _, p := range s.dirtyPools {
		if p.flows != nil {
			p.flows.firstServed = false
		}
		if p.gone {
			s.pools[p.id] = nil
			s.freePools = append(s.freePools, p.id)
		}
	}
	s.dirtyPools, s.dirtyFrontends = nil, nil
	c.ClusterIPs = s.clusterIPs.change()
	c.HairpinIPs = s.hairpins.change()
	c.ServiceCIDRs = s.serviceCIDRs.change()
	c.Health = s.healthChanges()
	c.HealthPorts = s.healthPorts.change()
	return c
}

// Full is the whole content, as the Change from nothing to it. The next Change
// starts from it. Health checks that are gone since the last Change or Full are
// among the others, with Port 0.
func (s *State) Full() *Update {
	last := s.collect()
	c := &Update{Change: *s.Told(), Problems: last.Problems, Flows: s.allFlows()}
	for _, h := range last.Health {
		if h.Port == 0 {
			c.Health = append(c.Health, h)
		}
	}
	for _, svc := range s.services {
		if svc.health != nil && svc.health.told.Port != 0 {
			c.Health = append(c.Health, svc.health.told)
		}
	}
	return c
}

// Told is the content as the last Change or Full left it, as the Change from nothing
// to it: what the kernel has, if it took that. What objects have changed since is not in
// it. It changes nothing.
func (s *State) Told() *Change {
	c := &Change{Local: s.toldLocal, Masquerade: s.config.masquerade()}
	c.Frontends = make([]FrontendChange, 0, len(s.frontends))
	for _, f := range s.frontends {
		if f.told != nil {
			c.Frontends = append(c.Frontends, FrontendChange{New: f.told})
		}
	}
	c.Pools = make([]PoolChange, 0, len(s.pools))
	for _, p := range s.pools {
		if p != nil && p.told {
			c.Pools = append(c.Pools, p.full())
		}
	}
	c.ClusterIPs = s.clusterIPs.full()
	c.HairpinIPs = s.hairpins.full()
	c.ServiceCIDRs = s.serviceCIDRs.full()
	c.HealthPorts = s.healthPorts.full()
	return c
}
