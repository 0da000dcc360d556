// SPDX-License-Identifier: Apache-2.0

package desired

// Change is what differs from the last Change or Full.
func (s *State) Change() *Change {
	if s.local() != s.toldLocal {
		return &Change{Rebuild: true, Local: s.local()}
	}
	return s.collect()
}

// collect takes what differs from what was told and counts it as told.
func (s *State) collect() *Change {
	s.toldLocal = s.local()
	c := &Change{Problems: s.problems, Local: s.toldLocal}
	s.problems = nil
	for _, p := range s.dirtyPools {
		p.dirty = false
		if pc, differs := p.change(&s.hairpins); differs {
			c.Pools = append(c.Pools, pc)
		}
		s.countLack(p)
		c.StaleFlows = s.staleFlows(c.StaleFlows, p)
	}
	for _, f := range s.dirtyFrontends {
		f.dirty = false
		if fc, differs := f.change(); differs {
			c.Frontends = append(c.Frontends, fc)
			c.StaleFlows = s.newFrontendFlows(c.StaleFlows, fc)
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
	c.HealthChecks = s.healthChanges()
	return c
}

// Full is the whole content, as the Change from nothing to it. The next Change
// starts from it. Health checks that are gone since the last Change or Full are
// among the others, with Port 0.
func (s *State) Full() *Change {
	last := s.collect()
	c := s.Told()
	c.Problems = last.Problems
	for _, h := range last.HealthChecks {
		if h.Port == 0 {
			c.HealthChecks = append(c.HealthChecks, h)
		}
	}
	for _, svc := range s.services {
		if svc.health != nil && svc.health.told.Port != 0 {
			c.HealthChecks = append(c.HealthChecks, svc.health.told)
		}
	}
	c.StaleFlows = s.allFlows()
	return c
}

// Told is the content as the last Change or Full left it, as the Change from nothing
// to it: what the kernel has, if it took that. What has come since is not in it, nor is
// anything that is not for the backend. It changes nothing.
func (s *State) Told() *Change {
	c := &Change{Local: s.toldLocal}
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
	return c
}
