// SPDX-License-Identifier: Apache-2.0

package fastpath

import (
	"fmt"
	"strings"
	"testing"

	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
)

// lateRules are rules that are added to the hook forward while connections are offloaded. Those that drop have to end the
// connection to the Service web, whose backend is 10.244.1.11, and others have to count packets.
var lateRules = []struct {
	name, rule string
	ends       bool
}{
	{"limit", "limit rate 1000000/second counter", false},
	{"quota", "quota 1000000 mbytes counter", false},
	{"mark", "meta mark set 1 counter", false},
	{"change by an address", "ip daddr 10.244.1.0/24 ip ttl set 40 counter", false},
	{"mark by a port and an interface", "meta nfproto ipv4 iifname \"veth2\" th sport { 8080, 8082-8084 } meta mark set 1 counter", false},
	{"a drop by address", "ip daddr 10.244.1.11 counter drop", true},
	{"a drop of answers", "ip saddr 10.244.1.11 th sport 8080 counter drop", true},
	{"a drop by interface", "meta nfproto ipv4 oifname \"veth2\" counter drop", true},
	{"a drop by length", "ip saddr 10.244.1.2 meta length > 10 counter drop", true},
	{"a drop in a chain", "ip protocol { tcp, udp } jump inner", true},
}

// TestLateRule adds rules to the hook forward while connections are offloaded: they take effect, unless all may be
// bypassed.
func TestLateRule(t *testing.T) { engines(t, testLateRule, kerneltest.NFTBinary) }

func testLateRule(t *testing.T, engine Engine) {
	for _, p := range []lab.Protocol{lab.TCP, lab.UDP} {
		for _, r := range lateRules {
			t.Run(fmt.Sprint(p, " ", r.name), func(t *testing.T) {
				w := newWorld(t, Config{Engine: engine, Threshold: threshold})
				to, elsewhere := w.stream(p, web, false), w.stream(p, web, true)
				w.fast(to, elsewhere)
				w.addRule(r.rule)
				if r.ends {
					w.until("the connection is dropped", func() bool { n := to.Stats().Received; w.goesOn(elsewhere); return to.Stats().Received == n })
				} else {
					w.until("packets are counted", func() bool { n := w.counted(); w.goesOn(to); return w.counted() >= n+20 })
				}
				if strings.Contains(r.name, "by") {
					w.fast(elsewhere)
				}
				w.check(w.Check(t.Context()))
				w.nft("delete table inet late")
				if !r.ends {
					w.fast(to)
					w.unharmed(to)
				}
				w.unharmed(elsewhere)
			})
		}
	}
	t.Run("all", func(t *testing.T) {
		w := newWorld(t, Config{Engine: engine, Threshold: threshold, Bypass: BypassAll})
		s := w.stream(lab.TCP, web, false)
		w.fast(s)
		w.addRule("ip daddr 10.244.1.11 counter drop")
		for range 20 {
			w.goesOn(s)
		}
		w.fast(s)
		w.unharmed(s)
	})
}

// TestLateLegacyRule adds a rule of iptables-legacy while a connection is offloaded.
func TestLateLegacyRule(t *testing.T) { engines(t, testLateLegacyRule, kerneltest.IPTablesLegacy) }

func testLateLegacyRule(t *testing.T, engine Engine) {
	w := newWorld(t, Config{Engine: engine, Threshold: threshold})
	to, elsewhere := w.stream(lab.TCP, web, false), w.stream(lab.TCP, other, true)
	w.fast(to, elsewhere)
	w.check2(w.node.Run(t.Context(), "iptables-legacy", "-A", "FORWARD", "-s", "10.244.1.2", "-j", "DROP"))
	w.until("the connection is dropped", func() bool { n := to.Stats().Received; w.goesOn(elsewhere); return to.Stats().Received == n })
	w.check2(w.node.Run(t.Context(), "iptables-legacy", "-F", "FORWARD"))
	late := w.stream(lab.TCP, web, false)
	w.fast(late)
	w.check2(w.node.Run(t.Context(), "iptables-legacy", "-A", "FORWARD", "-d", "10.244.1.11", "-j", "MARK", "--set-mark", "1"))
	w.until("it leaves the fast path", func() bool { _, is := late.flow(); return !is })
	w.stays(late)
	w.fast(elsewhere)
	w.unharmed(elsewhere, late)
}

// addRule adds a rule to the hook forward.
func (w *world) addRule(rule string) {
	w.t.Helper()
	w.nft("add table inet late; add chain inet late inner; add rule inet late inner ip daddr 10.244.1.11 counter drop;" +
		"add chain inet late forward { type filter hook forward priority 0; }; add rule inet late forward " + rule)
}

// counted is how many packets the added rule has counted.
func (w *world) counted() (n int) {
	w.t.Helper()
	if _, rest, ok := strings.Cut(w.nft("list chain inet late forward"), "counter packets "); ok {
		w.check2(fmt.Sscan(rest, &n))
	}
	return n
}
