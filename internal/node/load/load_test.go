// SPDX-License-Identifier: Apache-2.0

package load_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/ctnetlink"
	"github.com/slipstream-proxy/slipstream/internal/node/load"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// place is a node with a client and a server with several ports, of which the node translates
// 10.96.0.1:80 and 10.96.0.1:53 to the first of them.
type place struct {
	t              testing.TB
	node           *lab.Node
	client, server *lab.Pod
	counter        *load.Counter
}

var (
	web     = netip.MustParseAddrPort("10.96.0.1:80")
	dns     = netip.MustParseAddrPort("10.96.0.1:53")
	backend = netip.MustParseAddrPort("10.244.1.3:8000")
)

const rules = `
add table ip translate
add chain ip translate prerouting { type nat hook prerouting priority -100; }
add rule ip translate prerouting ip daddr 10.96.0.1 meta l4proto { tcp, udp } dnat to 10.244.1.3:8000`

func unwatched(desired.FrontendKey, desired.Backend) string { return "" }

func newPlace(t testing.TB) *place {
	t.Helper()
	kerneltest.Require(t, kerneltest.NFTBinary)
	l := kerneltest.NewLab(t)
	node, err := l.Node("n1", lab.NodeOptions{
		Addresses: []netip.Prefix{netip.MustParsePrefix("192.168.100.11/24")},
		PodCIDRs:  []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")},
	})
	must(t, err)
	p := &place{t: t, node: node}
	p.client, err = node.Pod("client", netip.MustParseAddr("10.244.1.2"))
	must(t, err)
	p.server, err = node.Pod("server", backend.Addr())
	must(t, err)
	for _, protocol := range []lab.Protocol{lab.TCP, lab.UDP} {
		_, err := p.server.Serve(protocol, netip.AddrPortFrom(netip.IPv4Unspecified(), backend.Port()))
		must(t, err)
	}
	if out, err := node.Run(context.WithoutCancel(t.Context()), "nft", rules); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	p.count()
	return p
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// count makes a new counter.
func (p *place) count() {
	c := load.New(p.node.FD(), false)
	p.t.Cleanup(func() { must(p.t, c.Stop()) })
	p.counter = c
}

func (p *place) load(protocol desired.Protocol) desired.Load {
	p.t.Helper()
	must(p.t, p.counter.Update(p.t.Context(), true, unwatched))
	return p.counter.Of(protocol, desired.NewBackend(backend))
}

// await updates the counter until the backend has so many open connections.
func (p *place) await(protocol desired.Protocol, open int) (l desired.Load) {
	p.t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if l = p.load(protocol); l.Open == open {
			return l
		}
	}
	p.t.Fatalf("%s: %+v, want %d open", protocol, l, open)
	return l
}

func (p *place) stream(protocol lab.Protocol, to netip.AddrPort) *lab.Stream {
	p.t.Helper()
	s, err := p.client.Stream(protocol, to, 10*time.Millisecond)
	must(p.t, err)
	p.t.Cleanup(func() { s.Close() })
	return s
}

// Connections count from their first packet until one end closes them, not until conntrack
// forgets them two minutes later.
func TestOpen(t *testing.T) {
	p := newPlace(t)
	p.await(desired.TCP, 0)
	a, b := p.stream(lab.TCP, web), p.stream(lab.TCP, web)
	two := p.await(desired.TCP, 2)
	if two.Begun <= 1 || two.Begun > 2 || two.Ended != 0 {
		t.Errorf("%+v, want 2 that have begun", two)
	}
	a.Close()
	if one := p.await(desired.TCP, 1); one.Begun > two.Begun || one.Ended != 1 {
		t.Errorf("%+v, want 1 that has ended", one)
	}
	b.Close()
	p.await(desired.TCP, 0)
	for range 50 {
		_, err := p.client.Connect(lab.TCP, web)
		must(t, err)
	}
	p.await(desired.TCP, 0)
}

// Both ends may close at the same time on two processors. Then no event says FIN_WAIT or CLOSE_WAIT.
func TestClosedAtOnce(t *testing.T) {
	p := newPlace(t)
	p.await(desired.TCP, 0)
	p.stream(lab.TCP, web)
	p.await(desired.TCP, 1)
	const lastAck, timeWait = 6, 7 // enum tcp_conntrack
	ct, err := ctnetlink.Dial(p.node.FD())
	must(t, err)
	defer ct.Close()
	var tuple ctnetlink.Tuple
	must(t, ct.Dump(t.Context(), unix.AF_INET, nil, func(data []byte) {
		if e := (ctnetlink.Entry{}); e.Parse(data) && e.Original.Dst == web {
			tuple = e.Original
		}
	}))
	for _, state := range []uint8{lastAck, timeWait} { // the kernel reports them, as if packets had led to them
		m, err := ctnetlink.UpdateOf(tuple, func(a *netlink.AttributeEncoder) {
			a.Nested(nl.CTA_PROTOINFO, func(a *netlink.AttributeEncoder) error {
				a.Nested(nl.CTA_PROTOINFO_TCP, func(a *netlink.AttributeEncoder) error {
					a.Uint8(nl.CTA_PROTOINFO_TCP_STATE, state)
					return nil
				})
				return nil
			})
		})
		must(t, err)
		must(t, ct.Execute(t.Context(), []netlink.Message{m}, func(err error) { must(t, err) }))
	}
	p.await(desired.TCP, 0)
}

// The time for which connections were open counts, and fades when none is open.
func TestHeld(t *testing.T) {
	p := newPlace(t)
	p.await(desired.TCP, 0)
	begin := time.Now()
	a, b := p.stream(lab.TCP, web), p.stream(lab.TCP, web)
	p.await(desired.TCP, 2)
	open := time.Now()
	time.Sleep(300 * time.Millisecond)
	least := 2 * time.Since(open).Seconds()
	held := p.load(desired.TCP).Held
	// After so long, what was first has faded to a share of exp(-time/memory).
	least *= math.Exp(-time.Since(begin).Seconds() / desired.LoadMemory.Seconds())
	if most := 2 * time.Since(begin).Seconds(); held < least || held > most {
		t.Errorf("held for %v s, want %v to %v", held, least, most)
	}
	a.Close()
	b.Close()
	held = p.await(desired.TCP, 0).Held
	time.Sleep(100 * time.Millisecond)
	if l := p.load(desired.TCP); l.Held >= held*math.Exp(-0.01) || l.Held == 0 {
		t.Errorf("held for %v s after %v", l.Held, held)
	}
}

// A connection that is refused or reset, or that nobody answers, says nothing about the time that
// the backend needs. It counts while it is open.
func TestNotServed(t *testing.T) {
	p := newPlace(t)
	p.await(desired.TCP, 0)
	unlearnt := func(what string) {
		t.Helper()
		if l := p.await(desired.TCP, 0); l.Ended > 0 || l.Held > 1e-6 || l.Begun == 0 {
			t.Errorf("%s: %+v", what, l)
		}
	}
	p.rule("add table ip refuse")
	p.rule("add chain ip refuse input { type filter hook input priority 0; }")
	p.rule("add rule ip refuse input tcp dport 8000 reject with tcp reset")
	for range 5 {
		if _, err := p.client.Connect(lab.TCP, web); err == nil {
			t.Fatal("the connection was not refused")
		}
	}
	unlearnt("refused")
	p.rule("flush chain ip refuse input")
	p.stream(lab.TCP, web)
	p.await(desired.TCP, 1)
	time.Sleep(300 * time.Millisecond) // in which it would count in Held
	p.rule("add rule ip refuse input tcp dport 8000 reject with tcp reset")
	unlearnt("reset")
	p.rule("flush chain ip refuse input")
	p.rule("add rule ip refuse input tcp dport 8000 drop")
	if _, err := p.client.Connect(lab.TCP, web, lab.Timeout(300*time.Millisecond)); err == nil {
		t.Fatal("the connection was answered")
	}
	p.await(desired.TCP, 1)
	if out, err := p.node.Run(context.WithoutCancel(t.Context()), "conntrack", "-D", "-p", "tcp"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	unlearnt("not answered")
}

// rule runs a command of nft on the server.
func (p *place) rule(command string) {
	p.t.Helper()
	if out, err := p.server.Run(context.WithoutCancel(p.t.Context()), "nft", command); err != nil {
		p.t.Fatalf("%v: %s", err, out)
	}
}

// Without events of the kernel nothing is known, rather than something old. It may begin and end at any time.
func TestNoEvents(t *testing.T) {
	p := newPlace(t)
	p.await(desired.TCP, 0)
	p.stream(lab.TCP, web)
	p.await(desired.TCP, 1)
	events := func(value string) {
		t.Helper()
		if out, err := p.node.Run(context.WithoutCancel(t.Context()), "sysctl", "-w", "net.netfilter.nf_conntrack_events="+value); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	silent := func(what string) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
			if err := p.counter.Update(t.Context(), true, unwatched); err != nil {
				if l := p.counter.Of(desired.TCP, desired.NewBackend(backend)); l != (desired.Load{}) || !strings.Contains(err.Error(), "nf_conntrack_events is 0") {
					t.Errorf("%s: %+v, %v", what, l, err)
				}
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: no error", what)
			}
		}
	}
	known := func(what string, open int) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
			err := p.counter.Update(t.Context(), true, unwatched)
			if l := p.counter.Of(desired.TCP, desired.NewBackend(backend)); err == nil && l.Open == open {
				return
			} else if time.Now().After(deadline) {
				t.Fatalf("%s: %+v, %v, want %d open", what, l, err, open)
			}
		}
	}
	events("0")
	silent("while it counts")
	p.stream(lab.TCP, web)
	p.count()
	silent("from its start")
	events("1")
	known("when there are events again", 2)
	p.stream(lab.TCP, web)
	known("a connection with events", 3)
}

// The destinations whose connections have changed are those that clients use, once.
func TestChanged(t *testing.T) {
	p := newPlace(t)
	p.await(desired.TCP, 0)
	p.counter.Changed()
	want := []desired.FrontendKey{{AddrPort: web, Protocol: desired.TCP}}
	s := p.stream(lab.TCP, web)
	p.await(desired.TCP, 1)
	if got := p.counter.Changed(); !slices.Equal(got, want) {
		t.Errorf("%v after a connection, want %v", got, want)
	}
	p.load(desired.TCP)
	if got := p.counter.Changed(); got != nil {
		t.Errorf("%v although nothing changed", got)
	}
	s.Close()
	p.await(desired.TCP, 0)
	if got := p.counter.Changed(); !slices.Equal(got, want) {
		t.Errorf("%v after its end, want %v", got, want)
	}
}

// Go's poller does not watch the socket for events, as each would wake it up.
func TestEventsDoNotWake(t *testing.T) {
	p := newPlace(t)
	p.load(desired.TCP)
	pollers, err := filepath.Glob("/proc/self/fdinfo/*")
	must(t, err)
	seen := false
	for _, path := range pollers {
		watched, _ := os.ReadFile(path) // it may have been closed
		for line := range strings.Lines(string(watched)) {
			var fd int
			if _, err := fmt.Sscanf(line, "tfd: %d", &fd); err != nil {
				continue
			}
			address, _ := unix.Getsockname(fd)
			protocol, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
			if a, is := address.(*unix.SockaddrNetlink); is && protocol == unix.NETLINK_NETFILTER {
				seen = true // the socket for reading the table
				if a.Groups != 0 {
					t.Errorf("the poller watches the socket for events, %d", fd)
				}
			}
		}
	}
	if !seen {
		t.Error("no watched socket was found")
	}
}

// UDP flows count until conntrack forgets them.
func TestUDP(t *testing.T) {
	p := newPlace(t)
	p.await(desired.UDP, 0)
	flow := p.stream(lab.UDP, dns)
	if l := p.await(desired.UDP, 1); l.Begun > 1 {
		t.Errorf("%+v, want 1 flow", l)
	}
	flow.Close()
	for deadline := time.Now().Add(time.Minute); p.load(desired.UDP).Open > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%+v", p.load(desired.UDP))
		}
		// It fails if there is no entry.
		_, _ = p.node.Run(context.WithoutCancel(t.Context()), "conntrack", "-D", "-p", "udp")
	}
}

// A counter that begins later, or has stopped, reads the table.
func TestTable(t *testing.T) {
	p := newPlace(t)
	p.await(desired.TCP, 0)
	a := p.stream(lab.TCP, web)
	closed := p.stream(lab.TCP, web)
	p.await(desired.TCP, 2)
	closed.Close()
	p.await(desired.TCP, 1)
	must(t, p.counter.Stop())
	b := p.stream(lab.TCP, web)
	p.count()
	if l := p.await(desired.TCP, 2); l.Begun != 0 {
		t.Errorf("%+v: connections from before the counter began", l)
	}
	b.Close()
	a.Close() // which the kernel does not report if no socket was there when it began
	p.await(desired.TCP, 0)
}

// Connections that the node does not translate do not count.
func TestUntranslated(t *testing.T) {
	p := newPlace(t)
	p.await(desired.TCP, 0)
	p.stream(lab.TCP, backend)
	p.stream(lab.TCP, web)
	p.await(desired.TCP, 1)
}

// TestHandshakes: a backend is failing after three connections that have no answer for a second, or are refused, and until
// the next answer. Two are not enough. That is so while loads are counted, and while they are not.
func TestHandshakes(t *testing.T) {
	for _, loads := range []bool{true, false} {
		t.Run(fmt.Sprint("loads=", loads), func(t *testing.T) {
			testHandshakes(t, loads, lab.TCP, desired.TCP, "tcp flags syn drop", "tcp flags syn reject with tcp reset")
		})
		t.Run(fmt.Sprint("UDP,loads=", loads), func(t *testing.T) {
			testHandshakes(t, loads, lab.UDP, desired.UDP, "udp dport 8000 drop", "udp dport 8000 reject")
		})
	}
}

func testHandshakes(t *testing.T, loads bool, over lab.Protocol, protocol desired.Protocol, verdicts ...string) {
	p := newPlace(t)
	watch := func(desired.FrontendKey, desired.Backend) string { return "default" }
	p.await(desired.TCP, 0)
	to := desired.FrontendKey{AddrPort: web, Protocol: protocol}
	var last []desired.Handshake
	look := func() []desired.Handshake {
		must(t, p.counter.Update(t.Context(), loads, watch))
		return p.counter.Handshakes()
	}
	until := func(what string, want desired.Handshake) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
			if last = look(); slices.Contains(last, want) {
				return
			} else if time.Now().After(deadline) {
				t.Fatalf("%s: %v", what, last)
			}
		}
	}
	connect := func(n int) {
		for range n {
			_, _ = p.client.Connect(over, web, lab.Timeout(50*time.Millisecond))
			look()
		}
	}
	answered := desired.Handshake{Namespace: "default", Frontend: to, Backend: desired.NewBackend(backend)}
	failing := answered
	failing.Failing = true
	rule := func(text string) {
		t.Helper()
		if out, err := p.server.Run(t.Context(), "nft", text); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	look()
	rule("add table inet f; add chain inet f in { type filter hook input priority 0; }")
	for _, verdict := range verdicts {
		connected := func() {
			t.Helper()
			if _, err := p.client.Connect(over, web); err != nil {
				t.Fatal(err)
			}
			until("answered", answered)
		}
		connected()
		if again := look(); len(again) > 0 {
			t.Errorf("an answer is told twice: %v", again)
		}
		rule("add rule inet f in " + verdict)
		connect(2)
		for began := time.Now(); time.Since(began) < 2*time.Second; time.Sleep(50 * time.Millisecond) {
			if all := look(); len(all) > 0 {
				t.Errorf("%s: two failures are enough: %v", verdict, all)
			}
		}
		connect(1)
		until("failing", failing)
		rule("flush chain inet f in")
		connected()
		if all := look(); len(all) > 0 {
			t.Errorf("it is failing after an answer: %v", all)
		}
	}
	open := func() int { return p.counter.Of(protocol, desired.NewBackend(backend)).Open }
	before := open()
	p.stream(over, web)
	until("answered", answered)
	if now := open(); loads != (now == before+1) || !loads && now != before {
		t.Errorf("%d open connections are counted, and %d before the last one was answered", now, before)
	}
	watch = unwatched
	look()
	connect(1)
	if all := look(); len(all) > 0 {
		t.Errorf("unwatched handshakes: %v", all)
	}
}

// TestProbeEndpoint says what a probe tells of an endpoint, over TCP and UDP, with a query and without.
func TestProbeEndpoint(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTBinary)
	l := kerneltest.NewLab(t)
	var nodes [2]*lab.Node
	for i := range nodes {
		var err error
		nodes[i], err = l.Node(fmt.Sprint("n", i+1), lab.NodeOptions{
			Addresses: []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("192.168.100.1%d/24", i+1)), netip.MustParsePrefix(fmt.Sprintf("fd00:100::1%d/64", i+1))},
			PodCIDRs:  []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.244.%d.0/24", i+1)), netip.MustParsePrefix(fmt.Sprintf("fd00:244:%d::/64", i+1))},
		})
		must(t, err)
	}
	server, err := nodes[1].Pod("server", netip.MustParseAddr("10.244.2.3"), netip.MustParseAddr("fd00:244:2::3"))
	must(t, err)
	const answers, never, closed = 8000, 8001, 8002
	for _, protocol := range []lab.Protocol{lab.TCP, lab.UDP} {
		_, err := server.Serve(protocol, netip.AddrPortFrom(netip.Addr{}, answers))
		must(t, err)
	}
	must(t, server.Do(func() error {
		c, err := net.ListenPacket("udp", fmt.Sprint(":", never))
		if err == nil {
			t.Cleanup(func() { c.Close() })
		}
		return err
	}))
	run := func(m interface {
		Run(context.Context, string, ...string) ([]byte, error)
	}, commands string) {
		t.Helper()
		if out, err := m.Run(t.Context(), "nft", commands); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	const chains = "add table inet f; add chain inet f in { type filter hook input priority 0; }; add chain inet f forward { type filter hook forward priority 0; }; add chain inet f out { type filter hook output priority 0; }"
	for _, m := range []*lab.Machine{&nodes[0].Machine, &nodes[1].Machine, &server.Machine} {
		run(m, chains)
	}
	const tellsNothing, refused, late, unreachable = "nothing", "refused", "late", "unreachable"
	tells := func(err error) string {
		switch {
		case err == nil:
			return "answers"
		case errors.Is(err, syscall.ECONNREFUSED):
			return refused
		case errors.Is(err, syscall.EHOSTUNREACH):
			return unreachable
		case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
			return late
		}
		return tellsNothing
	}
	for _, c := range []struct {
		name           string
		at             *lab.Machine
		rule           string
		port           int
		tcp, udp, asks string
	}{
		{"it answers", nil, "", answers, "answers", "answers", "answers"},
		{"it never answers", nil, "", never, refused, "answers", late},
		{"nothing has the port", nil, "", closed, refused, refused, refused},
		{"its firewall drops", &server.Machine, "in meta l4proto { tcp, udp } drop", answers, late, "answers", late},
		{"its firewall prohibits", &server.Machine, "in meta l4proto udp reject with icmpx type admin-prohibited", answers, "answers", tellsNothing, tellsNothing},
		{"its firewall refuses", &server.Machine, "in meta l4proto udp reject", answers, "answers", refused, refused}, // as the kernel would
		{"a policy of its node drops", &nodes[1].Machine, "forward meta l4proto udp drop", answers, "answers", "answers", late},
		{"a policy of its node refuses", &nodes[1].Machine, "forward meta l4proto udp reject", answers, "answers", tellsNothing, tellsNothing},
		{"a policy of its node refuses a dead one", &nodes[1].Machine, "forward meta l4proto udp reject", closed, refused, tellsNothing, tellsNothing},
		{"a policy of its node prohibits", &nodes[1].Machine, "forward meta l4proto udp reject with icmpx type admin-prohibited", closed, refused, tellsNothing, tellsNothing},
		{"no host has the address", &nodes[1].Machine, "forward meta l4proto udp reject with icmpx type host-unreachable", answers, "answers", unreachable, unreachable},
		{"this node's rules drop", &nodes[0].Machine, "out meta l4proto udp drop", answers, "answers", tellsNothing, tellsNothing},
		{"this node's rules refuse", &nodes[0].Machine, "out meta l4proto udp reject", answers, "answers", tellsNothing, tellsNothing},
	} {
		if c.at != nil {
			run(c.at, "add rule inet f "+c.rule)
		}
		for _, a := range server.Addrs() {
			for what, want := range map[string]string{"tcp": c.tcp, "udp": c.udp, "dns": c.asks} {
				ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
				to := desired.Target{Protocol: desired.UDP, Backend: desired.NewBackend(netip.AddrPortFrom(a, uint16(c.port)))}
				if what == "tcp" {
					to.Protocol = desired.TCP
				}
				err := load.Probe(ctx, nodes[0].FD(), to, what == "dns")
				cancel()
				if got := tells(err); got != want {
					t.Errorf("%s, %s of %s: %s (%v), want %s", c.name, what, a, got, err, want)
				}
			}
		}
		if c.at != nil {
			run(c.at, "flush ruleset; "+chains)
		}
	}
}

// BenchmarkWatching reports the processor time that a thread takes for the events of 1,000 connections a second: to count loads,
// to watch handshakes only, and at the least, which is to read the latter's events and to do nothing with them.
func BenchmarkWatching(b *testing.B) {
	const rate, workers = 1000, 10
	watch := func(desired.FrontendKey, desired.Backend) string { return "default" }
	for _, what := range []string{"loads", "handshakes", "read only", "no events"} {
		b.Run(what, func(b *testing.B) {
			p := newPlace(b)
			read := func() { must(b, p.counter.Update(b.Context(), what == "loads", watch)); p.counter.Handshakes() }
			if what == "read only" || what == "no events" {
				events, err := ctnetlink.Listen(p.node.FD(), load.Filter(false, false), unix.NFNLGRP_CONNTRACK_NEW, unix.NFNLGRP_CONNTRACK_UPDATE, unix.NFNLGRP_CONNTRACK_DESTROY)
				must(b, err)
				defer events.Close()
				read = func() { _, err := events.Read(func([]byte) {}); must(b, err) }
			}
			read()
			pace := time.Second * workers / rate
			if what == "no events" {
				pace = time.Hour
			}
			clients, err := p.client.StartLoad(b.Context(), lab.TCP, web, lab.LoadOptions{Workers: workers, Pace: pace})
			must(b, err)
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			used := func() time.Duration {
				var r unix.Rusage
				must(b, unix.Getrusage(unix.RUSAGE_THREAD, &r))
				return time.Duration(r.Utime.Nano() + r.Stime.Nano())
			}
			for b.Loop() {
				before, made, begun := used(), clients.Stats().OK, time.Now()
				for ticks := time.NewTicker(50 * time.Millisecond); time.Since(begun) < 10*time.Second; <-ticks.C {
					read()
				}
				took := time.Since(begun).Seconds()
				b.ReportMetric(float64(clients.Stats().OK-made)/took, "connections/s")
				b.ReportMetric(100*(used()-before).Seconds()/took, "%-of-a-processor")
			}
			clients.Stop()
		})
	}
}
