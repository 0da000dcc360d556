// SPDX-License-Identifier: Apache-2.0

package desired

// Change is what differs from the last Change or Full.
func (s *State) Change() *Change {
	c := &Change{Problems: s.problems}
	s.problems = nil
	for _, p := range s.dirtyPools {
		p.dirty = false
		if pc, differs := p.change(&s.hairpins); differs {
			c.Pools = append(c.Pools, pc)
		}
	}
	for _, f := range s.dirtyFrontends {
		f.dirty = false
		if fc, differs := f.change(); differs {
			c.Frontends = append(c.Frontends, fc)
		}
		if len(f.claims) == 0 {
			delete(s.frontends, f.key)
		}
	}
	// IDs are free only now, so that none means two pools in one Change.
	for _, p := range s.dirtyPools {
		if p.gone {
			s.pools[p.id] = nil
			s.freePools = append(s.freePools, p.id)
		}
	}
	s.dirtyPools, s.dirtyFrontends = nil, nil
	c.ClusterIPs = s.clusterIPs.change()
	c.HairpinIPs = s.hairpins.change()
	return c
}

// Full is the whole content, as the Change from nothing to it. The next Change
// starts from it.
func (s *State) Full() *Change {
	c := &Change{Problems: s.Change().Problems}
	c.Frontends = make([]FrontendChange, 0, len(s.frontends))
	for _, f := range s.frontends {
		c.Frontends = append(c.Frontends, FrontendChange{New: f.told})
	}
	c.Pools = make([]PoolChange, 0, len(s.pools))
	for _, p := range s.pools {
		if p != nil {
			c.Pools = append(c.Pools, p.full())
		}
	}
	c.ClusterIPs = s.clusterIPs.full()
	c.HairpinIPs = s.hairpins.full()
	return c
}
