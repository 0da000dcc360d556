// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/node/conntrack"
)

// TestCleaning counts by family, in as many looks as without counting.
func TestCleaning(t *testing.T) {
	var frontends [][]string
	broken := errors.New("broken")
	m := complete(ModeNFTables)
	clean := m.Cleaning(func(stale []desired.StaleFlows) (conntrack.Stats, error) {
		var of []string
		for _, s := range stale {
			for _, k := range s.Frontends {
				of = append(of, k.AddrPort.String())
			}
		}
		frontends = append(frontends, of)
		return conntrack.Stats{Dumps: 1, Entries: 10, Deleted: len(of)}, broken
	})
	flows := func(all ...string) (s desired.StaleFlows) {
		s.Protocol = desired.UDP
		for _, a := range all {
			s.Frontends = append(s.Frontends, desired.FrontendKey{AddrPort: netip.MustParseAddrPort(a), Protocol: desired.UDP})
		}
		return s
	}
	stale := []desired.StaleFlows{flows("10.96.0.1:53", "[fd00:96::1]:53"), flows("10.96.0.2:53")}
	stats, err := clean(stale)
	if stats != (conntrack.Stats{Dumps: 2, Entries: 20, Deleted: 3}) || !errors.Is(err, broken) {
		t.Errorf("%+v, %v", stats, err)
	}
	if len(stale[0].Frontends) != 2 {
		t.Error("what it was given is not what it was")
	}
	want := [][]string{{"10.96.0.1:53", "10.96.0.2:53"}, {"[fd00:96::1]:53"}}
	if !slices.EqualFunc(frontends, want, slices.Equal) {
		t.Errorf("cleaned %v, want %v", frontends, want)
	}
	if _, err := clean(stale[1:]); !errors.Is(err, broken) {
		t.Error(err)
	}
	all := gathered(t, m)
	for i, want := range []struct{ looks, deleted float64 }{{2, 3}, {1, 1}} {
		looks := all["kubeproxy_conntrack_reconciler_sync_duration_seconds"].Metric[i].Histogram.GetSampleCount()
		deleted := all["kubeproxy_conntrack_reconciler_deleted_entries_total"].Metric[i].Counter.GetValue()
		if float64(looks) != want.looks || deleted != want.deleted {
			t.Errorf("%v: %d looks, %v deleted; want %+v", desired.Family(i), looks, deleted, want)
		}
	}
}
