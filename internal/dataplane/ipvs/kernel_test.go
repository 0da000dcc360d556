// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/dataplanetest"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/iptables"
	"github.com/slipstream-proxy/slipstream/test/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/lab"
)

// open makes another backend in a namespace, as another run would.
func open(t testing.TB, ns *lab.Namespace, o Options) *Backend {
	t.Helper()
	b, err := New(dataplane.Config{NetNS: ns.FD(), MasqueradeBit: dataplane.DefaultMasqueradeBit}, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

func newNamespace(t testing.TB) *lab.Namespace {
	kerneltest.Require(t, kerneltest.IPVS, kerneltest.NFTables)
	ns, err := lab.NewNamespace()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	return ns
}

func TestConformance(t *testing.T) {
	kerneltest.Require(t, kerneltest.IPVS, kerneltest.NFTables)
	dataplanetest.Conformance(t, 3, 2_000, func(t *testing.T) func() dataplanetest.Backend {
		ns := newNamespace(t)
		return func() dataplanetest.Backend { return open(t, ns, Options{}) }
	})
}

// TestConformanceLegacy does so with a table of iptables-legacy, as on a kernel without nf_tables.
func TestConformanceLegacy(t *testing.T) {
	kerneltest.Require(t, kerneltest.IPVS, kerneltest.IPTablesLegacy, kerneltest.IPSet)
	dataplanetest.Conformance(t, 1, 2_000, func(t *testing.T) func() dataplanetest.Backend {
		ns := newNamespace(t)
		o := Options{NewTable: func(c dataplane.Config) (Table, error) {
			return iptables.New(t.Context(), c, iptables.Options{Variant: iptables.Legacy})
		}}
		return func() dataplanetest.Backend { return open(t, ns, o) }
	})
}
