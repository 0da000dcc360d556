// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/dataplanetest"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"golang.org/x/sys/unix"
)

// open makes another backend in a namespace, as another run would.
func open(t testing.TB, ns *lab.Namespace, o Options) *Dataplane {
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
	dataplanetest.Conformance(t, desired.Config{IPVS: true, NoRanges: true, NoLimits: true}, 3, 2_000, func(t *testing.T) func() dataplanetest.Backend {
		ns := newNamespace(t)
		return func() dataplanetest.Backend { return open(t, ns, Options{}) }
	})
}

// TestUnknownPort: a server that listens on all addresses of the node cannot be reached at an
// address of kube-ipvs0.
func TestUnknownPort(t *testing.T) {
	s := newStreet(t, 1, Options{})
	if _, err := s.Node.Serve(lab.TCP, netip.MustParseAddrPort("0.0.0.0:81")); err != nil {
		t.Fatal(err)
	}
	for from, m := range map[string]*lab.Machine{"pod": &s.Client.Machine, "node": &s.Node.Machine} {
		if _, err := m.Connect(lab.TCP, netip.MustParseAddrPort("10.96.0.1:81")); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("from the %s: error %v", from, err)
		}
		if _, err := m.Connect(lab.TCP, netip.MustParseAddrPort("192.168.100.11:81")); err != nil {
			t.Errorf("from the %s to the node's address: %v", from, err)
		}
	}
	s.hits(1)
}
