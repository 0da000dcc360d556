// SPDX-License-Identifier: Apache-2.0

package fastpath

import (
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	engine "github.com/slipstream-proxy/slipstream/internal/fastpath/ebpf"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// atInterface is something of another program at an interface that packets have to pass. In commands,
// $in is the node's end of the client's link, and $out that of the server's.
type atInterface struct {
	name   string
	server bool   // it is at $out
	add    string // "" for a BPF program
	count  string // prints how many packets it has seen, after "pkt" or "packets"
	remove string
}

// Kernels of tests have few actions, and mirred among them.
const (
	sink   = "ip link add sink type ifb && ip link set sink up && "
	mirror = "u32 match u32 0 0 action mirred egress mirror dev sink"
)

// bandwidth limits what a pod sends and receives, as the bandwidth plugin of CNI does.
func bandwidth(rate, burst string) string {
	tbf := "root tbf latency 25ms rate " + rate + " burst " + burst
	return sink + "tc qdisc add dev sink " + tbf + " && tc qdisc add dev $in " + tbf + " && tc qdisc add dev $in ingress && " +
		"tc filter add dev $in parent ffff: protocol all prio 1 u32 match u32 0 0 action mirred egress redirect dev sink"
}

var atInterfaces = []atInterface{
	{
		name:   "filter at the ingress",
		add:    sink + "tc qdisc replace dev $in clsact && tc filter add dev $in ingress protocol all " + mirror,
		count:  "tc -s filter show dev $in ingress",
		remove: "tc qdisc del dev $in clsact",
	},
	{
		name:   "bandwidth plugin",
		add:    bandwidth("1gbit", "1m"),
		count:  "tc -s qdisc show dev sink root",
		remove: "tc qdisc del dev $in ingress",
	},
	{
		name:   "filters that interfaces share",
		add:    sink + "tc qdisc add dev $in ingress_block 7 clsact && tc filter add block 7 protocol all " + mirror,
		count:  "tc -s filter show block 7",
		remove: "tc filter del block 7",
	},
	{
		name:   "BPF filter",
		remove: "tc filter del dev $in ingress",
	},
	{
		name:   "filter at the egress",
		server: true,
		add:    sink + "tc qdisc replace dev $out clsact && tc filter add dev $out egress prio 65001 protocol all " + mirror,
		count:  "tc -s filter show dev $out egress",
		remove: "tc filter del dev $out egress",
	},
	{
		name:   "chain at the ingress",
		add:    `nft 'add table netdev other; add chain netdev other in { type filter hook ingress device "$in" priority -500; }; add rule netdev other in counter'`,
		count:  "nft list table netdev other",
		remove: "nft delete table netdev other",
	},
	{
		name:   "chain of family inet at the ingress",
		add:    `nft 'add table inet other; add chain inet other in { type filter hook ingress devices = { "$in" } priority 500; }; add rule inet other in counter'`,
		count:  "nft list table inet other",
		remove: "nft delete table inet other",
	},
	{
		name:   "chain at the egress",
		server: true,
		add:    `nft 'add table netdev other; add chain netdev other out { type filter hook egress device "$out" priority 0; }; add rule netdev other out counter'`,
		count:  "nft list table netdev other",
		remove: "nft delete table netdev other",
	},
}

// must runs a command with the names of the links, and fails the test if it says anything.
func (w *world) must(command string) {
	w.t.Helper()
	if said := w.sh(w.named(command)); said != "" {
		w.t.Fatalf("%s: %s", command, said)
	}
}

func (w *world) named(command string) string {
	return strings.NewReplacer("$in", w.client.NodeLink(), "$out", w.web[0].NodeLink()).Replace(command)
}

// put adds a, and returns how many packets it has seen.
func (w *world) put(a *atInterface) (count func() int) {
	w.t.Helper()
	if a.add == "" {
		program, seen := w.counter()
		l, err := w.links.LinkByName(w.client.NodeLink())
		w.check(err)
		w.check(w.links.QdiscAdd(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: l.Attrs().Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}}))
		w.check(w.links.FilterAdd(&netlink.BpfFilter{Name: "other", Fd: program.FD(), DirectAction: true, FilterAttrs: netlink.FilterAttrs{
			LinkIndex: l.Attrs().Index, Parent: netlink.HANDLE_MIN_INGRESS, Handle: 1, Priority: 10, Protocol: unix.ETH_P_ALL,
		}}))
		return func() int { return int(seen()) }
	}
	w.must(a.add)
	return func() int {
		w.t.Helper()
		out := w.sh(w.named(a.count))
		found := regexp.MustCompile(`(\d+) pkt|packets (\d+)`).FindStringSubmatch(out)
		if found == nil {
			w.t.Fatalf("%s: %s", a.count, out)
		}
		n, err := strconv.Atoi(found[1] + found[2])
		w.check(err)
		return n
	}
}

// sees fails the test unless something has seen the packets of a stream, of one direction.
func (w *world) sees(s *stream, count func() int) {
	w.t.Helper()
	seen, received := count(), s.Stats().Received
	w.goesOn(s, s)
	received = s.Stats().Received - received
	if seen = count() - seen; seen < int(received)-1 {
		w.t.Errorf("%d of %d packets were seen", seen, received)
	}
}

// TestEBPFBarred has something of another program at an interface, before the start or after a
// connection was offloaded. It has to see all packets, and the interface does not take part until it
// is removed. Connections over other interfaces are offloaded all the time.
func TestEBPFBarred(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTBinary)
	all := atInterfaces
	if kerneltest.TCX.Probe() != nil {
		all = all[4:] // TestEBPFBarredWithoutTCX
	}
	for _, a := range all {
		testBarred(t, Config{Engine: EBPF, Threshold: threshold}, &a)
	}
}

// TestFlowtableBarred has the same for the flowtable, for chains behind it, and chains before it are no reason.
func TestFlowtableBarred(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTBinary, kerneltest.Flowtable)
	for _, a := range atInterfaces[5:] {
		if a.name == "chain at the ingress" {
			testBeforeFlowtable(t, &a)
			a.add = strings.Replace(a.add, "-500", "0", 1)
		}
		testBarred(t, Config{Engine: Flowtable, Threshold: threshold}, &a)
	}
}

func testBeforeFlowtable(t *testing.T, a *atInterface) {
	t.Run("chain before it", func(t *testing.T) {
		w := newWorld(t, Config{Engine: Flowtable, Threshold: threshold})
		count := w.put(a)
		s := w.stream(lab.UDP, web, false)
		w.fast(s)
		w.sees(s, count)
		if stats, err := w.Stats(); err != nil || len(stats.LeftOut) > 0 {
			t.Errorf("%+v, %v, want no interface left out", stats, err)
		}
		w.fast(s)
	})
}

// TestEBPFBarredWithoutTCX has what comes after our filter of tc.
func TestEBPFBarredWithoutTCX(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTBinary)
	last := atInterfaces[0]
	last.name, last.add = "filter after ours", strings.Replace(last.add, "protocol", "prio 65001 protocol", 1)
	last.remove = "tc filter del dev $in ingress prio 65001"
	for _, a := range append(atInterfaces[4:], last) {
		testBarred(t, Config{Engine: EBPF, Threshold: threshold, withoutTCX: true}, &a)
	}
}

func testBarred(t *testing.T, c Config, a *atInterface) {
	for _, late := range []bool{false, true} {
		t.Run(fmt.Sprintf("%s/late=%t", a.name, late), func(t *testing.T) {
			w := newQuietWorld(t, c.Engine)
			w.endpoints(other, w.web[1])
			change := w.state.Change()
			w.check2(w.proxy.Apply(t.Context(), &change.Change))
			var count func() int
			if !late {
				count = w.put(a)
			}
			w.start(c)
			bystander := w.streamFrom(w.newPod(w.node, "bystander", 14), lab.TCP, other, false, interval)
			w.fast(bystander)
			s := w.stream(lab.UDP, web, false)
			if late {
				w.fast(s)
				count = w.put(a)
				w.until("the interface is left out", func() bool { stats, err := w.Stats(); w.check(err); return len(stats.LeftOut) > 0 })
				w.until("it returns to the slow path", func() bool { _, is := s.flow(); return !is })
			}
			w.sees(s, count)
			w.goesOn(s, s, s, s)
			w.sees(s, count)
			if _, is := s.flow(); is {
				t.Error("it is offloaded")
			}
			link := w.client.NodeLink()
			if a.server {
				link = w.web[0].NodeLink()
			}
			stats, err := w.Stats()
			w.check(err)
			if len(stats.LeftOut) != 1 || !strings.HasPrefix(stats.LeftOut[0], link+": ") || stats.Errors > 0 {
				t.Errorf("%+v, want %s left out", stats, link)
			}
			w.check(w.Check(t.Context()))
			if _, is := bystander.flow(); !is {
				t.Error("a connection over other interfaces is not offloaded")
			}
			w.must(a.remove)
			w.fast(s)
			w.unharmed(bystander)
		})
	}
}

// TestEBPFBarredUnready starts beside flows of an earlier run and a chain that was added since. The chain has to see their
// packets before Reconcile, which comes late while the API server does not answer. Other flows go on.
func TestEBPFBarredUnready(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTBinary)
	c := Config{Engine: EBPF, Threshold: threshold}
	w := newQuietWorld(t, EBPF)
	w.endpoints(other, w.web[1])
	w.check2(w.proxy.Apply(t.Context(), &w.state.Change().Change))
	w.start(c)
	s, bystander := w.stream(lab.UDP, web, false), w.streamFrom(w.newPod(w.node, "bystander", 14), lab.TCP, other, false, interval)
	w.fast(s, bystander)
	w.stop()
	w.check(w.Close())
	a := atInterfaces[slices.IndexFunc(atInterfaces, func(a atInterface) bool { return a.name == "chain at the ingress" })]
	count := w.put(&a)
	c.NetNS = w.node.FD()
	ctl, err := New(c)
	w.check(err)
	w.Controller = ctl
	w.run()
	stop := w.stop
	t.Cleanup(func() { stop(); _ = ctl.Close() })
	w.until("it returns to the slow path", func() bool { _, is := s.flow(); return !is })
	w.sees(s, count)
	if _, is := bystander.flow(); !is {
		t.Error("a connection over other interfaces is not offloaded any more")
	}
	w.check2(w.Controller.Reconcile(t.Context(), &w.state.Full().Change))
	w.must(a.remove)
	w.fast(s)
	w.unharmed(bystander)
}

// TestEBPFLimit limits a pod as the bandwidth plugin of CNI does, before and after its connection is
// offloaded. Most of what it sends at once, and of what it is sent, has to be dropped.
func TestEBPFLimit(t *testing.T) {
	for _, late := range []bool{false, true} {
		for _, sends := range []bool{false, true} {
			t.Run(fmt.Sprintf("late=%t/sends=%t", late, sends), func(t *testing.T) {
				if late {
					kerneltest.Require(t, kerneltest.TCX) // without, the qdisc is there already, and cannot be added
				}
				w := newQuietWorld(t, EBPF)
				if !late {
					w.must(bandwidth("80kbit", "20k"))
				}
				w.start(Config{Engine: EBPF, Threshold: 2, Scope: All})
				var ends [2]*net.UDPConn
				for i, p := range []*lab.Pod{w.client, w.web[0]} {
					w.check(p.Do(func() (err error) {
						ends[i], err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(p.Addr(false), 0)))
						return err
					}))
					defer ends[i].Close()
				}
				from, to := ends[0], ends[1]
				var buffer [4096]byte
				send := func(from, to *net.UDPConn) {
					w.check2(from.WriteTo(make([]byte, 10), to.LocalAddr()))
					w.check(to.SetReadDeadline(time.Now().Add(20 * time.Second)))
					w.check2(to.Read(buffer[:]))
				}
				offloaded := func() (is bool) {
					for range 10 {
						send(from, to)
						send(to, from)
					}
					w.check(engine.Each(w.node.FD(), func(f *engine.Flow) { is = is || f.Original.Src == from.LocalAddr().(*net.UDPAddr).AddrPort() }))
					return is
				}
				if late {
					w.until("it is offloaded", offloaded)
					w.must(bandwidth("80kbit", "20k"))
					w.until("it is not offloaded any more", func() bool { return !offloaded() })
				}
				offloaded()
				if !sends {
					from, to = to, from
				}
				const sent, atOnce = 200, 10 // the receiver's buffer has space for these
				received := 0
				receive := func(patience time.Duration) {
					for {
						w.check(to.SetReadDeadline(time.Now().Add(patience)))
						if _, err := to.Read(buffer[:]); err != nil {
							break
						}
						received++
					}
				}
				for range sent / atOnce {
					for range atOnce {
						w.check2(from.WriteTo(make([]byte, 1200), to.LocalAddr()))
					}
					receive(time.Millisecond)
				}
				receive(time.Second)
				if received == 0 || received > sent/2 {
					t.Errorf("of %d packets, 20 KiB may pass at once and 10 KB in a second, %d have passed", sent, received)
				}
			})
		}
	}
}
