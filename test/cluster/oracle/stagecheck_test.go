// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"net/netip"
	"testing"

	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
)

// TestWithoutProxy checks that servers see the client's own address, and that Service addresses
// lead elsewhere. NewStage checks that all vantages reach all endpoints.
func TestWithoutProxy(t *testing.T) {
	kerneltest.Require(t, kerneltest.Root)
	s, err := NewStage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, v := range s.Vantages {
		for f := range VIPs {
			for _, to := range []netip.AddrPort{
				netip.AddrPortFrom(Endpoints[2].Address[f], TargetPorts[0]), // d, on n2
				netip.AddrPortFrom(VIPs[f].Addr().Next().Next(), 80),
			} {
				want := "d"
				if VIPs[f].Contains(to.Addr()) {
					want = Elsewhere
				}
				for _, p := range []lab.Protocol{lab.TCP, lab.UDP} {
					for i := range 3 {
						r, err := v.Connect(p, to, i)
						if err != nil || r.Server != want || s.Owner(r.Seen.Addr()) != v.Name {
							t.Errorf("%s -> %v %v: %s saw %s, want %s to see %s (%v)", v.Name, p, to, r.Server, s.Owner(r.Seen.Addr()), want, v.Name, err)
						}
					}
				}
			}
		}
	}
}

func TestSourcesDiffer(t *testing.T) {
	for _, v := range []*Vantage{{Name: Outside, sources: Clients}, {Name: PodNoEndpoint, sources: aliases, own: true}} {
		for f := range Clients {
			seen := map[netip.Addr]bool{}
			for i := range 1000 {
				a := v.Source(f, i)
				if seen[a] || a.IsValid() && !v.sources[f].Contains(a) {
					t.Fatalf("%s: source %d is %v", v.Name, i, a)
				}
				seen[a] = true
			}
		}
	}
}
