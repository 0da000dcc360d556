// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
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
		Frontends:  []desired.FrontendChange{{New: &desired.Frontend{FrontendKey: key, Kind: desired.ClusterIP, Service: web, LocalPool: desired.NoPool}}},
		Pools:      []desired.PoolChange{{Service: web, IfEmpty: desired.Drop}},
		ClusterIPs: desired.AddressChange{Added: []netip.Addr{key.Addr()}},
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
