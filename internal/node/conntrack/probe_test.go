// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// TestProbe compares the probe's result with the kernel's behaviour, and checks that the probe
// leaves nothing behind.
func TestProbe(t *testing.T) {
	for f, flow := range map[family]string{
		ipv4: "udp 10.0.0.1:1001 10.96.0.10:53 10.244.1.5:54",
		ipv6: "udp [fd00::1]:1001 [fd00:96::10]:53 [fd00:244::5]:54",
	} {
		t.Run(f.String(), func(t *testing.T) {
			tab := newTable(t)
			tab.add(flowOf(flow))
			able, err := tab.probe(t.Context(), f)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("addresses: %v", able)
			if left := tab.flows(); !slices.Equal(left, []string{flow}) {
				t.Errorf("the probe leaves %v", left)
			}
			finds := func(fill func(*filter), able bool) bool {
				filter := filter{protocols: []desired.Protocol{desired.UDP}}
				fill(&filter)
				attributes, err := filter.attributes(f, able)
				if err != nil {
					t.Fatal(err)
				}
				found := false
				if err := tab.conn.Dump(t.Context(), uint8(f), attributes, func([]byte) { found = true }); err != nil && !refused(err) {
					t.Fatal(err)
				}
				return found
			}
			to, replies := flowOf(flow).to, flowOf(flow).answeredBy
			if finds(func(f *filter) { f.to.add(to) }, true) != able {
				t.Error("original addresses are not as the probe says")
			}
			if finds(func(f *filter) { f.replies.add(replies) }, true) != able {
				t.Error("addresses of replies are not as the probe says")
			}
			replies = netip.AddrPortFrom(to.Addr(), replies.Port())
			if !finds(func(f *filter) { f.replies.add(replies) }, false) {
				t.Error("the kernel compares ports of replies wrong")
			}
			to = netip.AddrPortFrom(to.Addr(), to.Port()+1)
			if finds(func(f *filter) { f.to.add(to) }, false) {
				t.Error("the kernel does not compare ports: so this test shows nothing")
			}
		})
	}
}

// TestAbilities cleans with and without the comparison of addresses, and probes once.
func TestAbilities(t *testing.T) {
	const frontends, backends = "10.96.0.10:53 [fd00:96::10]:53", "10.244.1.5:54 [fd00:244::5]:54"
	flows := []string{"udp 10.0.0.1:1001 10.96.0.10:53 10.244.1.5:54", "udp [fd00::1]:1001 [fd00:96::10]:53 [fd00:244::5]:54"}
	tab := newTable(t)
	for _, able := range []string{"unknown", "no", "yes"} {
		for _, f := range flows {
			tab.add(flowOf(f))
		}
		for _, f := range []family{ipv4, ipv6} {
			delete(tab.able, f)
			if able != "unknown" {
				real, err := tab.probe(t.Context(), f)
				if err != nil {
					t.Fatal(err)
				}
				tab.able[f] = real && able == "yes"
			}
		}
		if stats := tab.clean(stale(frontends, backends)); stats != (Stats{2, 2, 2}) {
			t.Errorf("%s: %+v", able, stats)
		}
		if len(tab.able) != 2 {
			t.Errorf("%d families are known", len(tab.able))
		}
	}
	// Known abilities are not probed again.
	tab.add(flowOf(flows[0]))
	tab.add(flowOf("udp 10.0.0.1:1001 10.96.0.20:53 10.244.1.6:54"))
	tab.able[ipv4] = false
	if stats := tab.clean(stale(frontends, "10.244.1.5:54")); stats != (Stats{1, 2, 1}) {
		t.Errorf("%+v", stats)
	}
}
