// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/desired/desiredtest"
)

func (t *translation) translate(c *desired.Change, s *servers) *desired.Change {
	before := s.sizes(c)
	s.write(&plan{drain: drains{}}, c)
	return t.change(c, before, s)
}

// content applies translated changes one after the other, as the table does, and refuses those
// that the table could not apply.
type content struct {
	pools     map[desired.PoolID]map[desired.Backend]bool
	frontends map[desired.FrontendKey]desired.Frontend
	addresses map[netip.Addr]bool
}

func newContent() *content {
	return &content{map[desired.PoolID]map[desired.Backend]bool{}, map[desired.FrontendKey]desired.Frontend{}, map[netip.Addr]bool{}}
}

func (c *content) apply(t *testing.T, change *desired.Change) {
	t.Helper()
	for _, p := range change.Pools {
		if _, exists := c.pools[p.ID]; exists == p.New {
			t.Fatalf("pool %d: new %t, exists %t", p.ID, p.New, exists)
		}
		if p.New {
			c.pools[p.ID] = map[desired.Backend]bool{}
		}
		for _, b := range p.Removed {
			if !c.pools[p.ID][b] {
				t.Fatalf("pool %d does not have %s, which is removed", p.ID, b)
			}
			delete(c.pools[p.ID], b)
		}
		for _, b := range p.Added {
			if c.pools[p.ID][b] {
				t.Fatalf("pool %d has %s, which is added", p.ID, b)
			}
			c.pools[p.ID][b] = true
		}
	}
	for _, f := range change.Frontends {
		old, exists := c.frontends[f.Key()]
		if exists != (f.Old != nil) || exists && old != *f.Old {
			t.Fatalf("frontend %s: it was %+v, not %+v", f.Key(), old, f.Old)
		}
		delete(c.frontends, f.Key())
		if f.New != nil {
			c.frontends[f.Key()] = *f.New
		}
	}
	for _, p := range change.Pools {
		if p.Gone {
			if left := c.pools[p.ID]; len(left) > 0 {
				t.Fatalf("pool %d is gone and has %v", p.ID, left)
			}
			delete(c.pools, p.ID)
		}
	}
	for key, f := range c.frontends {
		for _, id := range f.Pools() {
			if c.pools[id] == nil {
				t.Fatalf("frontend %s has pool %d, which does not exist", key, id)
			}
		}
	}
	for m, added := range change.Sets[desired.ClusterIPs].All() {
		a := m.Addr
		if added {
			if c.addresses[a] {
				t.Fatalf("address %s is added again", a)
			}
			c.addresses[a] = true
			continue
		}
		if !c.addresses[a] {
			t.Fatalf("address %s is not there, and is removed", a)
		}
		delete(c.addresses, a)
	}
}

// lines describes the content without the IDs of pools, which no frontend may have twice.
func (c *content) lines() string {
	var all []string
	used := map[desired.PoolID]bool{}
	for key, f := range c.frontends {
		line := key.String()
		for _, id := range f.Pools() {
			used[id] = true
			var backends []string
			for b := range c.pools[id] {
				backends = append(backends, b.String())
			}
			slices.Sort(backends)
			line += fmt.Sprint(" ", backends)
		}
		all = append(all, fmt.Sprint(line, " affinity ", f.Affinity))
	}
	for id := range c.pools {
		if !used[id] && id%2 == 1 {
			all = append(all, fmt.Sprintf("pool %d is of no use", id))
		}
	}
	for a := range c.addresses {
		all = append(all, "address "+a.String())
	}
	slices.Sort(all)
	return strings.Join(all, "\n")
}

// TestTranslation translates random changes. Each fits the content before it, and the content is
// that of a translation from nothing.
func TestTranslation(t *testing.T) {
	for seed := range uint64(200) {
		c := desiredtest.NewChoices(desiredtest.RandomInput(seed, 3_000))
		var objects desiredtest.Objects
		s := desired.New(desired.Config{NodeName: desiredtest.ThisNode, NodePortsByAddress: true})
		translation, record := newTranslation(), &servers{}
		table := newContent()
		table.apply(t, translation.translate(&s.Full().Change, record))
		for c.More() {
			objects.Step(c, s)
			if c.Below(3) > 0 {
				continue
			}
			change := &s.Change().Change
			if change.Rebuild {
				change = &s.Full().Change
				translation, record = newTranslation(), &servers{}
				table = newContent()
			}
			table.apply(t, translation.translate(change, record))
			fresh, freshRecord := newTranslation(), &servers{}
			want := newContent()
			want.apply(t, fresh.translate(&s.Full().Change, freshRecord))
			if got := table.lines(); got != want.lines() {
				t.Fatalf("seed %d: the content is\n%s\nand after a fresh translation\n%s", seed, got, want.lines())
			}
		}
		if len(translation.external) > 0 && seed == 0 {
			objects.Clear(s)
			table.apply(t, translation.translate(&s.Change().Change, record))
			if n := len(translation.tableUsers) + len(translation.external) + len(translation.clusterIPs) + len(translation.loadBalancers); n > 0 {
				t.Errorf("without Services: %+v", translation)
			}
		}
	}
}

// TestTranslationKinds: who serves a frontend, and which addresses are on the dummy interface,
// also when an interface of the node or another Node gets the address and loses it.
func TestTranslationKinds(t *testing.T) {
	pods := desired.NewBackend(netip.MustParseAddrPort("10.244.0.5:80"))
	for _, c := range []struct {
		name    string
		kind    desired.AddressKind
		local   bool // externalTrafficPolicy: Local
		not, of string
		another string // with the address of another Node
	}{
		{"ClusterIP", desired.ClusterIP, false, "elsewhere, affinity 0, on the dummy", "elsewhere, affinity 0, on the dummy", "elsewhere, affinity 0, on the dummy"},
		{"NodePort", desired.NodePort, false, "elsewhere, affinity 0", "elsewhere, affinity 0", "elsewhere, affinity 0"},
		{"local NodePort", desired.NodePort, true, "pods elsewhere, affinity 60", "pods elsewhere, affinity 60", "pods elsewhere, affinity 60"},
		{"load balancer IP", desired.LoadBalancerIP, false, "elsewhere, affinity 0, on the dummy", "elsewhere, affinity 0", "pods, affinity 60"},
		{"local load balancer IP", desired.LoadBalancerIP, true, "pods elsewhere, affinity 60, on the dummy", "pods elsewhere, affinity 60", "pods pods, affinity 60"},
		{"external IP", desired.ExternalIP, false, "pods, affinity 60", "elsewhere, affinity 0", "pods, affinity 60"},
		{"local external IP", desired.ExternalIP, true, "pods pods, affinity 60", "pods elsewhere, affinity 60", "pods pods, affinity 60"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := &desired.Frontend{
				FrontendKey: desired.FrontendKey{AddrPort: netip.MustParseAddrPort("198.51.100.1:80"), Protocol: desired.TCP},
				Kind:        c.kind, Pool: 1, LocalPool: desired.NoPool, Affinity: 60,
			}
			change := &desired.Change{Frontends: []desired.FrontendChange{{New: f}}}
			change.Pools = append(change.Pools, desired.PoolChange{ID: 1, New: true, Added: []desired.Backend{pods}})
			if c.local {
				f.LocalPool = 2
				change.Pools = append(change.Pools, desired.PoolChange{ID: 2, New: true, Added: []desired.Backend{pods}})
			}
			addr := []desired.Member{desired.Address(f.Addr())}
			if c.kind == desired.ClusterIP {
				change.Sets[desired.ClusterIPs].Added = addr
			}
			translation, record := newTranslation(), &servers{}
			table := newContent()
			translate := func(change *desired.Change, want string) {
				t.Helper()
				table.apply(t, translation.translate(change, record))
				served := table.frontends[f.FrontendKey]
				var pools []string
				for _, id := range served.Pools() {
					switch {
					case table.pools[id][pods]:
						pools = append(pools, "pods")
					case table.pools[id][dataplane.ServedByIPVS]:
						pools = append(pools, "elsewhere")
					}
				}
				got := fmt.Sprintf("%s, affinity %d", strings.Join(pools, " "), served.Affinity)
				if table.addresses[f.Addr()] {
					got += ", on the dummy"
				}
				if got != want {
					t.Errorf("%q, want %q", got, want)
				}
			}
			translate(change, c.not)
			translate(&desired.Change{Sets: [desired.Sets]desired.SetChange{desired.OwnIPs: {Added: addr}}}, c.of)
			translate(&desired.Change{Frontends: []desired.FrontendChange{{Old: f, New: f}}}, c.of)
			translate(&desired.Change{Sets: [desired.Sets]desired.SetChange{desired.OwnIPs: {Removed: addr}}}, c.not)
			translate(&desired.Change{Frontends: []desired.FrontendChange{{Old: f, New: f}}, Sets: [desired.Sets]desired.SetChange{desired.OwnIPs: {Added: addr}}}, c.of)
			translate(&desired.Change{Sets: [desired.Sets]desired.SetChange{desired.OwnIPs: {Removed: addr}, desired.OtherNodeIPs: {Added: addr}}}, c.another)
			translate(&desired.Change{Sets: [desired.Sets]desired.SetChange{desired.OwnIPs: {Added: addr}}}, c.of)
			translate(&desired.Change{Sets: [desired.Sets]desired.SetChange{desired.OwnIPs: {Removed: addr}}}, c.another)
			translate(&desired.Change{Sets: [desired.Sets]desired.SetChange{desired.OtherNodeIPs: {Removed: addr}}}, c.not)
		})
	}
}
