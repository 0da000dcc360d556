// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"fmt"
	"slices"
	"testing"
)

// checkViews compares what a State shows to people with its full content, after it was reported.
func checkViews(s *State) error {
	type key struct {
		port, protocol, family, scope string
	}
	want, got := map[key][]string{}, map[key][]string{}
	full := s.Reported()
	for _, p := range full.Pools {
		if shown := s.pools[p.ID].of.poolIn(p.Scope); shown == nil || shown.id != p.ID {
			continue // one of another kind has the same backends, or packets are passed on
		}
		k := key{p.Service.String(), s.pools[p.ID].of.port.protocol.String(), p.Family.String(), p.Scope.String()}
		for _, b := range p.Added {
			want[k] = append(want[k], b.String())
		}
	}
	var failed error
	s.ViewServices(nil, true, func(v *ServiceView) {
		for _, p := range v.Ports {
			for _, e := range p.Endpoints {
				for scope, use := range e.Use {
					if k := (key{p.Name, p.Protocol, p.Family, scope}); use == Used.String() {
						got[k] = append(got[k], e.Address)
					}
				}
			}
			for _, pool := range p.Pools {
				k := key{p.Name, p.Protocol, p.Family, pool.Scope}
				if pool.Backends != len(got[k]) || (pool.Backends == 0) != (pool.IfEmpty != "") || (pool.Backends == 0) != (pool.Empty != "") {
					failed = fmt.Errorf("pool of %v: %+v with %v", k, pool, got[k])
				}
			}
		}
	})
	if failed != nil {
		return failed
	}
	for k := range want {
		slices.Sort(want[k])
		slices.Sort(got[k])
		if !slices.Equal(want[k], got[k]) {
			return fmt.Errorf("%v has the backends %v, and shows %v as used", k, want[k], got[k])
		}
	}
	if len(got) != len(want) {
		return fmt.Errorf("it shows endpoints of %d pools as used, %d have some", len(got), len(want))
	}
	for _, f := range full.Frontends {
		k := f.Key()
		if k.OnNode() {
			continue
		}
		if d := s.Decide(Origin{Class: FromNode}, k); d.Frontend == nil || *d.Frontend != *f.New || len(d.Content.Pools) != len(f.New.Pools()) || (len(d.Candidates) == 0) != (d.Empty != "") {
			return fmt.Errorf("the decision about %s is %+v", k, d)
		}
	}
	return nil
}

// TestUse checks the reasons why endpoints are not used.
func TestUse(t *testing.T) {
	ok := ready | serving
	for _, c := range []struct {
		choice choice
		cond   condition
		want   Use
	}{
		{choice{class: usable}, ok, Used},
		{choice{class: usable}, serving, NotReady},
		{choice{class: usable}, serving | terminating, Terminating},
		{choice{class: lastResort}, serving | terminating, Used},
		{choice{class: lastResort}, terminating, Terminating},
		{choice{class: usable, has: local}, ok, NotLocal},
		{choice{class: usable, has: local}, ok | local, Used},
		{choice{class: usable, has: inZone}, ok, OtherZone},
		{choice{class: usable, has: zoneMatches}, ok | zoneHint, HintForOtherZone},
		{choice{class: usable, has: nodeMatches}, ok | nodeHint, HintForOtherNode},
		{choice{class: usable, lacks: inZone}, ok | inZone, InAvoidedZone},
	} {
		if got := c.choice.use(c.cond); got != c.want {
			t.Errorf("%+v of %b: %s, want %s", c.choice, c.cond, got, c.want)
		}
	}
}
