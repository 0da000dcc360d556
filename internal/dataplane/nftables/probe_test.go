// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"errors"
	"testing"

	"github.com/google/nftables/expr"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/dataplanetest"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/feature"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"golang.org/x/sys/unix"
)

// TestProbe finds nothing missing on the kernels that tests run on, and leaves neither
// tables nor another generation of the ruleset, beside tables of ours or alone.
func TestProbe(t *testing.T) {
	k := newKernel(t)
	s := desired.New(desired.Config{})
	fancy(s)
	other := k.dial()
	for _, before := range []string{"nothing", "tables"} {
		generation, err := other.Generation()
		if err != nil {
			t.Fatal(err)
		}
		missing, err := k.Probe(t.Context())
		if err != nil || len(missing) > 0 {
			t.Errorf("with %s there: missing %v, error %v", before, missing, err)
		}
		for _, family := range []nfnl.Family{nfnl.IPv4, nfnl.IPv6} {
			if _, err := k.conn.Table(nfnl.Table{Family: family, Name: probeTable}); !errors.Is(err, unix.ENOENT) {
				t.Errorf("with %s there: table %s: %v", before, probeTable, err)
			}
		}
		if now, err := other.Generation(); err != nil || now != generation {
			t.Errorf("with %s there: generation %d after %d: %v", before, now, generation, err)
		}
		dataplanetest.Reconcile(t, k.Dataplane, s)
	}
}

// TestProbeNames makes the kernel refuse features that it really lacks: the family netdev has
// neither chains of the type nat nor the expression masq, and no kernel has tables of family
// 63.
func TestProbeNames(t *testing.T) {
	k := newKernel(t)
	const netdev, none = 5, 63
	for family, want := range map[nfnl.Family]struct {
		feature string
		errno   unix.Errno
	}{
		netdev: {"chain type nat", unix.ENOENT},
		none:   {"tables of the family family?", unix.EOPNOTSUPP},
	} {
		s := schemas[desired.IPv6]
		s.table.Family = family
		var m feature.Missing
		if err := k.probe(s); !errors.As(err, &m) || m.Feature != want.feature || !errors.Is(err, want.errno) {
			t.Errorf("family %d: error %v; want %+v", family, err, want)
		}
	}
	var b nfnl.Batch
	table := nfnl.Table{Family: netdev, Name: probeTable}
	b.AddDormantTable(table)
	b.AddChain(table, nfnl.Chain{Name: "c"})
	b.AddRule(table, "c", "", []expr.Any{&expr.Counter{}, &expr.Masq{}, &expr.Counter{}})
	var refused *nfnl.BatchError
	if err := k.conn.DryRun(&b); !errors.As(err, &refused) || refused.Expr != "masq" {
		t.Fatalf("%v", err)
	}
	if feature, remedy := schemas[desired.IPv6].feature(refused); feature != "expression masq" || remedy != "needs CONFIG_NFT_MASQ" {
		t.Errorf("%s; %s", feature, remedy)
	}
}

// TestWithoutFamily leaves one family out, of which the content has frontends.
func TestWithoutFamily(t *testing.T) {
	k := newKernel(t)
	k.unsupported[desired.IPv6] = true
	s := desired.New(desired.Config{Without: k.unsupported})
	fancy(s)
	dataplanetest.Reconcile(t, k.Dataplane, s)
	k.has(s)
	web(s, 1, dataplanetest.Hosts(3)...)
	dataplanetest.Apply(t, k.Dataplane, s)
	k.has(s)
	if err := k.Check(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := k.conn.Table(schemas[desired.IPv6].table); !errors.Is(err, unix.ENOENT) {
		t.Errorf("the table of IPv6: %v", err)
	}
	dataplanetest.Reconcile(t, k.Dataplane, s) // now that there is a table
	k.has(s)
}
