// SPDX-License-Identifier: Apache-2.0

package fastpath

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	nf "github.com/cilium/ebpf/link"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"golang.org/x/sys/unix"
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
	{"limit by as many addresses as fit", "ip saddr != " + addresses(mostRanges) + " limit rate 1000000/second counter", false},
	{"limit by more addresses", "ip saddr != " + addresses(70) + " limit rate 1000000/second counter", false},
	{"a drop in a chain", "ip protocol { tcp, udp } jump inner", true},
}

// elsewhereRules are rules of table inet late that matter although they are not in the hook forward, or matter once something
// else is done.
var elsewhereRules = []struct {
	name, rules string
	done        func(*world)
	ends        bool
}{
	{"a limit by the Service's address", "chain c { type filter hook prerouting priority -300; ip daddr 10.96.0.10 limit rate 1000000/second counter; }", nil, false},
	{"a limit by the endpoint's address", "chain c { type filter hook prerouting priority -50; ip daddr 10.244.1.11 limit rate 1000000/second counter; }", nil, false},
	{"a limit of answers", "chain c { type filter hook prerouting priority -150; meta nfproto ipv4 th sport 8080 limit rate 1000000/second counter; }", nil, false},
	{"an early drop", "chain c { type filter hook prerouting priority -150; ip saddr 10.244.1.2 counter drop; }", nil, true},
	{"an early policy", "chain c { type filter hook prerouting priority 10; policy drop; meta nfproto ipv6 accept; }", nil, true},
	{"a mark that conntrack gets", "chain c { type filter hook forward priority 0; meta nfproto ipv4 ct mark 7 counter drop; }", func(w *world) {
		w.sh("conntrack -U -p tcp -d 10.96.0.10 -m 7 2>&1")
	}, true},
	{"a set that packets fill", "set bad { type ipv4_addr; }\nchain p { type filter hook input priority 0; add @bad { ip saddr }; }\n" +
		"chain c { type filter hook forward priority 0; ip saddr @bad counter drop; }", func(w *world) {
		_, _ = w.client.Connect(lab.TCP, netip.MustParseAddrPort("192.168.100.11:9")) // it is refused
	}, true},
}

// addresses is a set of n addresses, none of which a connection has.
func addresses(n int) string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("192.0.2.%d", i+1)
	}
	return "{ " + strings.Join(all, ", ") + " }"
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
					w.dropped(to, elsewhere)
				} else {
					w.until("answers are counted", func() bool { n := w.counted(); w.goesOn(to); return w.counted() >= n+10 })
				}
				if strings.Contains(r.name, "by") {
					w.fast(elsewhere)
				}
				w.check(w.Check(t.Context()))
				w.until("Verify finds no difference", func() bool { // the rules may just be read again
					_, faults, err := Verify(t.Context(), w.config, &w.state.Full().Change)
					w.check(err)
					return len(faults) == 0
				})
				w.nft("delete table inet late")
				if !r.ends {
					w.fast(to)
					w.unharmed(to)
				}
				w.unharmed(elsewhere)
			})
		}
	}
	for _, r := range elsewhereRules {
		t.Run(r.name, func(t *testing.T) {
			w := newWorld(t, Config{Engine: engine, Threshold: threshold})
			to, elsewhere := w.stream(lab.TCP, web, false), w.stream(lab.TCP, web, true)
			w.fast(to, elsewhere)
			w.nft("table inet late {\n" + r.rules + "\n}")
			if r.done != nil {
				w.until("it leaves the fast path", func() bool { _, is := to.flow(); return !is })
				r.done(w)
			}
			if r.ends {
				w.dropped(to, elsewhere)
			} else {
				w.until("packets are counted", func() bool { n := w.counted(); w.goesOn(to); return w.counted() >= n+10 })
				w.unharmed(to)
			}
			w.fast(elsewhere)
			w.unharmed(elsewhere)
		})
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

// TestLateRuleAfterFailure: a connection leaves the fast path for rules that are added while something fails, once that is over,
// or because rules are not known.
func TestLateRuleAfterFailure(t *testing.T) {
	engines(t, testLateRuleAfterFailure, kerneltest.NFTBinary)
}

func testLateRuleAfterFailure(t *testing.T, engine Engine) {
	for name, fail := range map[string]func(*world){
		"connections do not return": func(w *world) {
			w.mu.Lock()
			w.engine = &refusing{w.engine, 2}
			w.mu.Unlock()
			w.addRule("meta mark set 1 counter")
		},
		"rules cannot be read": func(w *world) {
			w.foreign.mu.Lock()
			defer w.foreign.mu.Unlock()
			w.check(w.foreign.conn.Close())
		},
		"the table is incomplete": func(w *world) {
			w.mu.Lock()
			w.sequence.Begin()
			w.mu.Unlock()
			w.addRule("meta mark set 1 counter")
			w.until("the rule is read", func() bool {
				w.mu.Lock()
				defer w.mu.Unlock()
				return len(w.foreign.known.Ways) > 0
			})
			w.check2(w.Controller.Reconcile(w.t.Context(), &w.state.Full().Change))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, Config{Engine: engine, Threshold: threshold})
			s := w.stream(lab.TCP, web, false)
			w.fast(s)
			fail(w)
			w.until("it leaves the fast path", func() bool { _, is := s.flow(); return !is })
			w.stays(s)
			w.check(w.Check(t.Context()))
			w.unharmed(s)
		})
	}
}

// refusing is an engine that does not return connections to the slow path the first times.
type refusing struct {
	fastEngine
	times int
}

func (r *refusing) renew(t *nfnl.Contents) (*nfnl.Batch, error) {
	if r.times--; r.times >= 0 {
		return nil, unix.EIO
	}
	return r.fastEngine.renew(t)
}

// TestLateLegacyRule adds a rule of iptables-legacy while a connection is offloaded.
func TestLateLegacyRule(t *testing.T) { engines(t, testLateLegacyRule, kerneltest.IPTablesLegacy) }

func testLateLegacyRule(t *testing.T, engine Engine) {
	w := newWorld(t, Config{Engine: engine, Threshold: threshold})
	to, elsewhere := w.stream(lab.TCP, web, false), w.stream(lab.TCP, other, true)
	w.fast(to, elsewhere)
	w.check2(w.node.Run(t.Context(), "iptables-legacy", "-A", "FORWARD", "-s", "10.244.1.2", "-j", "DROP"))
	w.dropped(to, elsewhere)
	w.check2(w.node.Run(t.Context(), "iptables-legacy", "-F", "FORWARD"))
	late := w.stream(lab.TCP, web, false)
	w.fast(late)
	w.check2(w.node.Run(t.Context(), "iptables-legacy", "-A", "FORWARD", "-d", "10.244.1.11", "-j", "MARK", "--set-mark", "1"))
	w.until("it leaves the fast path", func() bool { _, is := late.flow(); return !is })
	w.stays(late)
	w.fast(elsewhere)
	w.unharmed(elsewhere, late)
}

// TestLateLegacyPolicy changes a policy of iptables-legacy while a connection is offloaded, which changes neither number nor
// size of rules.
func TestLateLegacyPolicy(t *testing.T) { engines(t, testLateLegacyPolicy, kerneltest.IPTablesLegacy) }

func testLateLegacyPolicy(t *testing.T, engine Engine) {
	w := newWorld(t, Config{Engine: engine, Threshold: threshold})
	w.check2(w.node.Run(t.Context(), "iptables-legacy", "-A", "FORWARD", "-d", "10.244.1.12", "-j", "ACCEPT"))
	w.check2(w.node.Run(t.Context(), "iptables-legacy", "-A", "FORWARD", "-s", "10.244.1.12", "-j", "ACCEPT"))
	to, elsewhere := w.stream(lab.TCP, web, false), w.stream(lab.TCP, other, true)
	w.fast(to, elsewhere)
	start := time.Now()
	w.check2(w.node.Run(t.Context(), "iptables-legacy", "-P", "FORWARD", "DROP"))
	w.dropped(to, elsewhere)
	t.Logf("after %v", time.Since(start))
	w.check2(w.node.Run(t.Context(), "iptables-legacy", "-P", "FORWARD", "ACCEPT"))
	w.fast(elsewhere)
	w.unharmed(elsewhere)
}

// TestLateProgram attaches a BPF program to a hook while a connection is offloaded: it sees the packets of its family, unless all
// may be bypassed, and when it is gone, the connection is offloaded again.
func TestLateProgram(t *testing.T) { engines(t, testLateProgram, programsAtHooks) }

// programsAtHooks is Linux 6.4 with CONFIG_NETFILTER_BPF_LINK.
var programsAtHooks = kerneltest.Define("BPF programs at hooks", func() error {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.Netfilter, AttachType: ebpf.AttachNetfilter, License: "GPL", Instructions: asm.Instructions{
		asm.Mov.Imm(asm.R0, 1), asm.Return(),
	}})
	if err == nil {
		p.Close()
	}
	return err
})

func testLateProgram(t *testing.T, engine Engine) {
	for _, hook := range []nf.NetfilterInetHook{nf.NetfilterInetPreRouting, nf.NetfilterInetForward, nf.NetfilterInetPostRouting} {
		for _, bypass := range []Bypass{BypassNone, BypassAll} {
			t.Run(fmt.Sprint("hook ", hook, " bypass ", bypass), func(t *testing.T) {
				w := newWorld(t, Config{Engine: engine, Threshold: threshold, Bypass: bypass})
				s, elsewhere := w.stream(lab.TCP, web, false), w.stream(lab.TCP, web, true)
				w.fast(s, elsewhere)
				const accept = 1
				program, count := w.counterOf(&ebpf.ProgramSpec{Type: ebpf.Netfilter, AttachType: ebpf.AttachNetfilter}, accept)
				var l nf.Link
				w.check(w.node.Do(func() (err error) {
					l, err = nf.AttachNetfilter(nf.NetfilterOptions{Program: program, ProtocolFamily: nf.NetfilterProtoIPv4, Hook: hook, Priority: -10})
					return err
				}))
				defer l.Close()
				if bypass == BypassAll {
					for range 200 {
						w.goesOn(s)
					}
					w.fast(s)
					return
				}
				w.until("answers are counted", func() bool { n := count(); w.goesOn(s); return count() >= n+2 })
				w.stays(s)
				w.fast(elsewhere)
				w.check(w.Check(t.Context()))
				w.check(l.Close())
				w.fast(s)
				w.unharmed(s, elsewhere)
			})
		}
	}
}

// dropped waits until a stream has no answer while another has a hundred.
func (w *world) dropped(s, elsewhere *stream) {
	w.t.Helper()
	w.until("the connection is dropped", func() bool {
		n := s.Stats().Received
		for range 10 {
			w.goesOn(elsewhere)
		}
		return s.Stats().Received == n
	})
}

// addRule adds a rule to the hook forward.
func (w *world) addRule(rule string) {
	w.t.Helper()
	w.nft("add table inet late; add chain inet late inner; add rule inet late inner ip daddr 10.244.1.11 counter drop;" +
		"add chain inet late forward { type filter hook forward priority 0; }; add rule inet late forward " + rule)
}

// counted is how many packets the added rules have counted.
func (w *world) counted() (n int) {
	w.t.Helper()
	for _, rest := range strings.Split(w.nft("list table inet late"), "counter packets ")[1:] {
		var packets int
		w.check2(fmt.Sscan(rest, &packets))
		n += packets
	}
	return n
}
