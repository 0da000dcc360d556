// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/dataplanetest"
	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// elsewhere has IPVS serve all pools of a change that have backends.
func elsewhere(c *desired.Change) *desired.Change {
	for i := range c.Pools {
		for _, backends := range []*[]desired.Backend{&c.Pools[i].Added, &c.Pools[i].Removed} {
			if len(*backends) > 0 {
				*backends = []desired.Backend{dataplane.Elsewhere}
			}
		}
	}
	return c
}

// TestVirtualServers: IPVS serves many Services. Their number makes no rule, and their changes
// write none. The next run in iptables mode leaves nothing of that.
func TestVirtualServers(t *testing.T) {
	eachVariant(t, func(t *testing.T, v Variant) {
		k := newKernel(t, v)
		k.config.VirtualServers = true
		if missing, err := k.Probe(t.Context()); err != nil || len(missing) > 0 {
			t.Fatalf("missing %v, error %v", missing, err)
		}
		s := desired.New(desired.Config{})
		has := func() {
			t.Helper()
			want := dataplane.ContentOf(elsewhere(&s.Full().Change))
			if diff, err := dataplane.Compare(t.Context(), k, want); diff != "" || err != nil {
				t.Fatalf("error %v:\n%s", err, diff)
			}
			if err := k.Check(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		rules := func() int { return strings.Count(k.run("iptables-"+string(v)+"-save"), "\n-A SLIP-") }
		reconcile := func() {
			t.Helper()
			if _, err := k.Reconcile(t.Context(), elsewhere(&s.Full().Change)); err != nil {
				t.Fatal(err)
			}
			has()
		}
		reconcile()
		none := rules()
		for i := range 50 {
			web(s, i, dataplanetest.Hosts(i%2)...)
		}
		reconcile()
		web(s, 7)
		web(s, 8, 1)
		web(s, 100, 1)
		s.DeleteService("default", "web-9")
		stats, err := k.Apply(t.Context(), elsewhere(&s.Change().Change))
		if err != nil || stats.Bytes > 0 {
			t.Errorf("%+v, error %v", stats, err)
		}
		has()
		if n := rules(); n != none {
			t.Errorf("%d rules for 50 Services, %d for none", n, none)
		}
		k.guard.next = time.Time{}
		k.damage("iptables-V -t mangle -F OUTPUT")
		if err := k.Check(t.Context()); !errors.Is(err, dataplane.ErrDamaged) {
			t.Errorf("check: %v", err)
		}
		reconcile()

		next := k.open(v)
		t.Cleanup(func() { next.Close() })
		dataplanetest.Reconcile(t, next, s)
		dataplanetest.Has(t, next, s)
		if text := k.run("iptables-" + string(v) + "-save -t mangle"); strings.Contains(text, prefix) {
			t.Errorf("the next run in iptables mode leaves\n%s", text)
		}
	})
}
