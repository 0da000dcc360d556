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

// newTranslation returns a translation with a record, on a node that has 203.0.113.9/24.
func newTranslation() (*translation, *servers) {
	o := others{own: map[netip.Addr]bool{netip.MustParseAddr("203.0.113.9"): true}, networks: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}}
	l := &lookup{others: &o}
	t := &translation{
		inside: map[desired.PoolID]int{}, addresses: map[netip.Addr]int{}, own: l.own, skipped: map[netip.Addr]bool{},
		neighbour: l.neighbour, external: map[netip.Addr]*externalIP{},
	}
	return t, &servers{}
}

func (t *translation) translate(c *desired.Change, s *servers) *desired.Change {
	t.arrive(c)
	before := s.sizes(c)
	s.write(&plan{drain: drains{}}, c)
	out := t.change(c, before, s)
	t.leave(c)
	return out
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
	for _, a := range change.ClusterIPs.Removed {
		if !c.addresses[a] {
			t.Fatalf("address %s is not there, and is removed", a)
		}
		delete(c.addresses, a)
	}
	for _, a := range change.ClusterIPs.Added {
		if c.addresses[a] {
			t.Fatalf("address %s is added again", a)
		}
		c.addresses[a] = true
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
		s := desired.New(desired.Config{NodeName: desiredtest.ThisNode})
		translation, record := newTranslation()
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
				translation, record = newTranslation()
				table = newContent()
			}
			table.apply(t, translation.translate(change, record))
			fresh, freshRecord := newTranslation()
			want := newContent()
			want.apply(t, fresh.translate(&s.Full().Change, freshRecord))
			if got := table.lines(); got != want.lines() {
				t.Fatalf("seed %d: the content is\n%s\nand after a fresh translation\n%s", seed, got, want.lines())
			}
		}
		if len(translation.external) > 0 && seed == 0 {
			objects.Clear(s)
			table.apply(t, translation.translate(&s.Change().Change, record))
			if n := len(translation.inside) + len(translation.addresses) + len(translation.skipped) + len(translation.external); n > 0 {
				t.Errorf("without Services: %+v", translation)
			}
		}
	}
}

// TestTranslationKinds: who serves a frontend, and which addresses are on the dummy interface.
func TestTranslationKinds(t *testing.T) {
	pods := desired.NewBackend(netip.MustParseAddrPort("10.244.0.5:80"))
	for _, c := range []struct {
		name, addr   string
		kind         desired.AddressKind
		local        bool // externalTrafficPolicy: Local
		pools        string
		affinity     uint32
		onDummy, own bool
	}{
		{name: "ClusterIP", addr: "10.96.0.1", kind: desired.ClusterIP, pools: "elsewhere"},
		{name: "NodePort", addr: "203.0.113.9", kind: desired.NodePort, pools: "elsewhere"},
		{name: "local NodePort", addr: "203.0.113.9", kind: desired.NodePort, local: true, pools: "pods elsewhere", affinity: 60},
		{name: "load balancer IP", addr: "198.51.100.1", kind: desired.LoadBalancerIP, pools: "elsewhere", onDummy: true},
		{name: "load balancer IP in the node's network", addr: "203.0.113.1", kind: desired.LoadBalancerIP, pools: "elsewhere", onDummy: true},
		{name: "external IP", addr: "198.51.100.1", kind: desired.ExternalIP, pools: "elsewhere", onDummy: true},
		{name: "external IP in the node's network", addr: "203.0.113.1", kind: desired.ExternalIP, pools: "pods", affinity: 60},
		{name: "local external IP there", addr: "203.0.113.1", kind: desired.ExternalIP, local: true, pools: "pods pods", affinity: 60},
		{name: "external IP of the node", addr: "203.0.113.9", kind: desired.ExternalIP, pools: "elsewhere", own: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := &desired.Frontend{
				FrontendKey: desired.FrontendKey{AddrPort: netip.AddrPortFrom(netip.MustParseAddr(c.addr), 80), Protocol: desired.TCP},
				Kind:        c.kind, Pool: 1, LocalPool: desired.NoPool, Affinity: 60,
			}
			change := &desired.Change{Frontends: []desired.FrontendChange{{New: f}}}
			change.Pools = append(change.Pools, desired.PoolChange{ID: 1, New: true, Added: []desired.Backend{pods}})
			if c.local {
				f.LocalPool = 2
				change.Pools = append(change.Pools, desired.PoolChange{ID: 2, New: true, Added: []desired.Backend{pods}})
			}
			translation, record := newTranslation()
			table := newContent()
			table.apply(t, translation.translate(change, record))
			got := table.frontends[f.FrontendKey]
			var pools []string
			for _, id := range got.Pools() {
				switch {
				case table.pools[id][pods]:
					pools = append(pools, "pods")
				case table.pools[id][dataplane.Elsewhere]:
					pools = append(pools, "elsewhere")
				}
			}
			if strings.Join(pools, " ") != c.pools || got.Affinity != c.affinity {
				t.Errorf("pools %s, affinity %d", pools, got.Affinity)
			}
			if onDummy := len(table.addresses) > 0; onDummy != c.onDummy || c.own != translation.skipped[f.Addr()] {
				t.Errorf("on the dummy interface: %t; not because it is the node's: %t", onDummy, translation.skipped[f.Addr()])
			}
		})
	}
}
