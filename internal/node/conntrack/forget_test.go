// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// TestForgetIPVS makes entries like those of IPVS: the replies are from an endpoint, but no NAT
// rule was involved. (TestUDP has an entry with NAT.)
func TestForgetIPVS(t *testing.T) {
	tab := newTable(t)
	stay := []string{
		"tcp 10.0.0.1:1001 10.96.0.10:53 10.244.1.5:53",
		"udp 10.0.0.1:1003 10.96.0.10:54 10.244.1.5:53",
		"udp 10.0.0.1:1004 10.96.0.11:53 10.244.1.5:53",
	}
	leave := []string{
		"udp 10.0.0.1:1001 10.96.0.10:53 10.244.1.5:53",
		"udp 10.0.0.1:1002 10.96.0.10:53 10.96.0.10:53",
		"udp [fd00::1]:1001 [fd00:96::10]:53 [fd00:244::5]:53",
	}
	for _, f := range append(slices.Clone(stay), leave...) {
		tab.add(flowOf(f))
	}
	servers := []netip.AddrPort{netip.MustParseAddrPort("10.96.0.10:53"), netip.MustParseAddrPort("[fd00:96::10]:53")}
	stats, err := tab.ForgetIPVS(t.Context(), desired.UDP, servers)
	if err != nil || stats.Dumps != 2 || stats.Deleted != 3 {
		t.Errorf("%+v, %v; want 3 of 2 dumps deleted", stats, err)
	}
	if left := tab.flows(); !slices.Equal(left, stay) {
		t.Errorf("left are %q, want %q", left, stay)
	}
}
