// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// TestDifferings parses a difference and checks that its lines name their Services.
func TestDifferings(t *testing.T) {
	web := desired.ServicePort{Namespace: "default", Name: "web", Port: "http"}
	key := desired.FrontendKey{AddrPort: netip.MustParseAddrPort("[fd00::10]:80"), Protocol: desired.TCP}
	full := &desired.Change{
		Frontends: []desired.FrontendChange{{New: &desired.Frontend{FrontendKey: key, Kind: desired.ClusterIP, Service: web, LocalPool: desired.NoPool}}},
		Pools:     []desired.PoolChange{{Service: web, IfEmpty: desired.Drop}},
		Sets:      [desired.Sets]desired.SetChange{desired.ClusterIPs: {Added: []desired.Member{desired.Address(key.Addr())}}},
	}
	got := NewContent()
	got.Frontends[key] = Target{}
	other := key
	other.Protocol = desired.UDP
	got.Frontends[other] = Target{}
	got.Faults = []string{"pool 7 -> nowhere"}
	all := Differings(Difference(ContentOf(full), got), full)
	want := []Differing{
		{Subject: "ClusterIP fd00::10", Text: "ClusterIP fd00::10"},
		{Subject: "[fd00::10]:80/TCP", Service: web, Text: "[fd00::10]:80/TCP -> drop"},
		{Surplus: true, Subject: "[fd00::10]:80/TCP", Service: web, Text: "[fd00::10]:80/TCP -> reject"},
		{Surplus: true, Subject: "[fd00::10]:80/UDP", Text: "[fd00::10]:80/UDP -> reject"},
		{Surplus: true, Text: "fault: pool 7 -> nowhere"},
	}
	if !slices.Equal(all, want) {
		t.Errorf("%+v", all)
	}
	if got, want := all[1].String(), "- Service default/web:http: [fd00::10]:80/TCP -> drop"; got != want {
		t.Errorf("%q; want %q", got, want)
	}
	if got, want := all[4].String(), "+ fault: pool 7 -> nowhere"; got != want {
		t.Errorf("%q; want %q", got, want)
	}
	if all := Differings(Difference(ContentOf(full), ContentOf(full)), full); all != nil {
		t.Errorf("of the same: %+v", all)
	}
}

// TestLasting repeats a comparison that found a difference or was interrupted, and no other.
func TestLasting(t *testing.T) {
	damaged := errors.New("damaged")
	for _, c := range []struct {
		first, then error
		difference  string
		calls       int
	}{
		{nil, nil, "", 1},
		{nil, nil, "- a", 2},
		{fmt.Errorf("a table: %w", ErrInterrupted), nil, "", 2},
		{damaged, damaged, "", 1},
	} {
		calls := 0
		difference, err := Lasting(t.Context(), func() (string, error) {
			if calls++; calls == 1 {
				return c.difference, c.first
			}
			return "", c.then
		})
		if difference != "" || !errors.Is(err, c.then) || calls != c.calls {
			t.Errorf("%v: %q, %v after %d calls", c.first, difference, err, calls)
		}
	}
}
