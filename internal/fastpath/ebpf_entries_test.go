// SPDX-License-Identifier: Apache-2.0

package fastpath

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	tcx "github.com/cilium/ebpf/link"
	"github.com/slipstream-proxy/slipstream/internal/bpffs"
	engine "github.com/slipstream-proxy/slipstream/internal/fastpath/ebpf"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// after waits until a stream has had n more answers, or done.
func (w *world) after(s *stream, n int64, done func() bool) {
	w.t.Helper()
	n += s.Stats().Received
	w.until("the stream goes on", func() bool { return s.Stats().Received >= n || done() })
}

// TestEBPFAssured offloads a UDP connection that is younger than two seconds. Conntrack assures older ones,
// which it then does not evict from a full table.
func TestEBPFAssured(t *testing.T) {
	w := newWorld(t, Config{Engine: EBPF, Threshold: threshold})
	s := w.stream(lab.UDP, web, false)
	w.fast(s)
	assured := func() bool { return strings.Contains(w.entryLine(s), "[ASSURED]") }
	w.after(s, 2000, assured) // four seconds at least
	if !assured() {
		t.Errorf("after %d answers: %s", s.Stats().Received, w.entryLine(s))
	}
}

// TestEBPFTimeout changes the timeout of established connections after the start, as "slipstream run" does.
// Entries of offloaded connections have to get the new one.
func TestEBPFTimeout(t *testing.T) {
	const sysctl = "netfilter/nf_conntrack_tcp_timeout_established"
	w := newQuietWorld(t, EBPF)
	w.check(w.node.SetSysctl(sysctl, "432000")) // the kernel's default
	w.start(Config{Engine: EBPF, Threshold: threshold})
	w.check(w.node.SetSysctl(sysctl, "86400"))
	s := w.stream(lab.TCP, web, false)
	w.fast(s)
	renewed := func() bool { return w.timeout(s) <= 86400 }
	w.after(s, 200, func() bool { return false }) // checks are ten times a second
	w.after(s, 6000, renewed)
	if !renewed() {
		t.Errorf("the entry has a timeout of %d s", w.timeout(s))
	}
}

// TestEBPFIPsecBefore starts while there is an IPsec policy. No connection may be offloaded, not even for
// the first second.
func TestEBPFIPsecBefore(t *testing.T) {
	w := newQuietWorld(t, EBPF)
	if said := w.sh("ip xfrm policy add dir out src 192.0.2.1/32 dst 192.0.2.2/32 tmpl proto esp mode tunnel"); said != "" {
		t.Skip("NOT RUN: " + said)
	}
	w.check(w.node.SetSysctl("netfilter/nf_conntrack_acct", "1"))
	s := w.stream(lab.UDP, web, false)
	w.after(s, 2*threshold, func() bool { return false })
	w.start(Config{Engine: EBPF, Threshold: threshold})
	w.after(s, 300, func() bool { return false })
	if n, err := w.Stats(); err != nil || n.Offloaded > 0 {
		t.Errorf("%d connections were offloaded, %v", n.Offloaded, err)
	}
}

// TestEBPFNotKept has a connection whose packets need a mark for their route. The program looks it up without,
// so the flow ends at once. It must not be offloaded every second again.
func TestEBPFNotKept(t *testing.T) {
	w := newQuietWorld(t, EBPF)
	w.nft("add table inet marks; add chain inet marks prerouting { type filter hook prerouting priority -300; }; add rule inet marks prerouting meta mark set 1")
	rules := fmt.Sprintf("ip rule add pref 10 fwmark 1 lookup main; ip rule add pref 11 from %s to %s unreachable", w.client.Addr(false), w.web[0].Addr(false))
	if said := w.sh(rules); said != "" {
		t.Fatal(said)
	}
	w.start(Config{Engine: EBPF, Threshold: threshold})
	s := w.stream(lab.UDP, web, false)
	offloads := func() uint64 {
		n, err := w.Stats()
		w.check(err)
		return n.Offloaded
	}
	w.until("it is offloaded", func() bool { return offloads() > 0 })
	const most = 3
	w.after(s, 2500, func() bool { return offloads() > most })
	if n := offloads(); n > most {
		t.Errorf("it was offloaded %d times in %d answers", n, s.Stats().Received)
	}
	w.unharmed(s)
}

// TestEBPFHalf leaves one of a connection's two flows, as a process that ends between writing them. It has
// to end when it is idle.
func TestEBPFHalf(t *testing.T) {
	w := newWorld(t, Config{Engine: EBPF, Threshold: threshold})
	s := w.stream(lab.UDP, web, false)
	w.fast(s)
	w.check(s.Close())
	w.stop()
	flows, err := ebpf.LoadPinnedMap(w.pins()+"/flows", nil)
	w.check(err)
	defer flows.Close()
	keys := func() (all [][]byte) {
		var key, value []byte
		for i := flows.Iterate(); i.Next(&key, &value); {
			all = append(all, bytes.Clone(key))
		}
		return all
	}
	for _, key := range keys() {
		if bytes.HasPrefix(key, w.client.Addr(false).AsSlice()) {
			w.check(flows.Delete(key))
		}
	}
	if n := len(keys()); n != 1 {
		t.Fatalf("%d flows are left", n)
	}
	for range 50 { // until the clock has ticked
		time.Sleep(10 * time.Millisecond)
		w.check(w.engine.(*ebpfEngine).program.Sweep(0))
	}
	if n := len(keys()); n > 0 {
		t.Errorf("%d flows are left after the sweep", n)
	}
}

// TestEBPFCounters checks what docs/fastpath.md says: packets that go directly into a pod are not counted at the
// node's end of its link.
func TestEBPFCounters(t *testing.T) {
	w := newWorld(t, Config{Engine: EBPF, Threshold: threshold})
	s := w.stream(lab.UDP, web, false)
	w.fast(s)
	sent := func() uint64 {
		link, err := w.links.LinkByName(w.web[0].NodeLink())
		w.check(err)
		return link.Attrs().Statistics.TxPackets
	}
	before, answers := sent(), s.Stats().Received
	w.after(s, 500, func() bool { return false })
	counted, answered := sent()-before, uint64(s.Stats().Received-answers)
	text, err := os.ReadFile("../../docs/fastpath.md")
	w.check(err)
	if says := strings.Contains(string(text), "counters of the node's end of its link do not count them"); says != (counted < answered/2) {
		t.Errorf("%d of %d packets were counted; docs/fastpath.md says it: %t", counted, answered, says)
	}
}

// crashedBeforePolicy returns a world in which a Controller has crashed, with an offloaded connection that a rule drops
// since.
func crashedBeforePolicy(t *testing.T, c Config) (*world, *stream) {
	w := newWorld(t, c)
	s := w.stream(lab.UDP, web, false)
	w.fast(s)
	w.stop()
	w.check(w.Close())
	w.nft("add table inet np; add chain inet np forward { type filter hook forward priority 0; };" +
		"add rule inet np forward ct original ip daddr " + s.to.Addr().String() + " drop")
	return w, s
}

// TestAdoptedPolicy adds a policy's rule after a crash, before the next start. Connections that were
// offloaded before have to pass it.
func TestAdoptedPolicy(t *testing.T) {
	engines(t, func(t *testing.T, engine Engine) {
		c := Config{Engine: engine, Threshold: threshold}
		w, s := crashedBeforePolicy(t, c)
		w.start(c)
		w.after(s, 500, func() bool { return s.Stats().Failed > 0 })
		if s.Stats().Failed == 0 {
			t.Error("its packets do not pass the rule")
		}
	})
}

// TestAdoptedAgain fails in different ways to have the connections of an earlier run pass the rules, before it succeeds.
func TestAdoptedAgain(t *testing.T) {
	engines(t, func(t *testing.T, engine Engine) {
		for name, fail := range map[string]func(*world){
			"flush": func(w *world) {
				settle := w.settle
				w.settle = func(int) error { return errors.New("on purpose") }
				if _, err := w.Controller.Reconcile(t.Context(), &w.state.Full().Change); err == nil {
					t.Error("Reconcile succeeds")
				}
				w.settle = settle
			},
			"programming": func(w *world) {
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				if _, err := w.Controller.Reconcile(ctx, &w.state.Full().Change); err == nil {
					t.Log("Reconcile succeeds all the same")
				}
			},
			"table": func(w *world) { w.nft("delete table inet " + TableName) },
		} {
			t.Run(name, func(t *testing.T) {
				c := Config{Engine: engine, Threshold: threshold}
				w, s := crashedBeforePolicy(t, c)
				w.startWith(c, func(ctl *Controller) { w.Controller = ctl; fail(w) })
				w.after(s, 500, func() bool { return s.Stats().Failed > 0 })
				if s.Stats().Failed == 0 {
					t.Error("its packets do not pass the rule")
				}
			})
		}
	})
}

// TestEBPFNotOpened starts while another program has the place of ours. The engine cannot be opened, so nobody would apply
// policies to the flows of an earlier run: they end.
func TestEBPFNotOpened(t *testing.T) {
	c := Config{Engine: EBPF, Threshold: threshold}
	w := newWorld(t, c)
	s := w.stream(lab.TCP, web, false)
	w.fast(s)
	w.stop() // but not closed
	w.must("tc qdisc add dev lo clsact; tc filter add dev lo ingress prio 65000 handle 1 bpf direct-action bytecode '1,6 0 0 4294967295,'")
	c.NetNS, c.withoutTCX = w.node.FD(), true
	if ctl, err := New(c); err == nil {
		ctl.Close()
		t.Fatal("it was opened")
	}
	w.watchSlowPath()
	w.until("both directions take the slow path", func() bool { original, reply := w.slowPackets(); return original > 0 && reply > 0 })
	w.unharmed(s)
}

// TestEBPFShare fills the share of a pod. As soon as these connections have ended, others have it.
func TestEBPFShare(t *testing.T) {
	w := newWorld(t, Config{Engine: EBPF, Threshold: threshold})
	first := w.stream(lab.UDP, web, false)
	w.fast(first)
	flows := w.pinned()
	_, value := w.flowFrom(flows, first.Stats().Source)
	binary.NativeEndian.PutUint64(value[checkedAt:], 1<<62) // they are not idle
	const share = 4096
	keys := [share][40]byte{}
	for i := range keys {
		binary.NativeEndian.PutUint32(keys[i][:], uint32(i))
		w.check(flows.Put(keys[i][:], value))
	}
	w.check(w.engine.(*ebpfEngine).program.Sweep(time.Hour))
	second := w.stream(lab.UDP, other, false)
	refused := func() uint64 {
		s, err := w.Stats()
		w.check(err)
		return s.Refused
	}
	w.until("it is refused again and again", func() bool { return refused() >= 3 })
	if _, is := second.flow(); is {
		t.Error("it is offloaded beyond the share")
	}
	for i := range keys {
		w.check(flows.Delete(keys[i][:]))
	}
	w.fast(second)
	w.unharmed(first, second)
}

// TestEBPFLostSync has the program believe wrong numbers of a busy connection, as if it had missed many packets. A
// second later it knows them again, and the connection's end for one.
func TestEBPFLostSync(t *testing.T) {
	w := newWorld(t, Config{Engine: EBPF, Threshold: threshold})
	s := w.stream(lab.TCP, web, false)
	w.fast(s)
	w.goesOn(s)
	flows := w.pinned()
	for _, from := range []netip.AddrPort{s.Stats().Source, portOf(w.web[0].Addr(false))} {
		key, value := w.flowFrom(flows, from)
		for _, at := range []int{ackAt, limitAt} {
			n := binary.NativeEndian.Uint32(value[at:])
			binary.NativeEndian.PutUint32(value[at:], n-1<<30)
		}
		w.check(flows.Put(key, value))
	}
	w.after(s, 1500, func() bool { return false }) // three seconds at least
	w.check(s.Close())
	w.until("conntrack has seen the end", func() bool { return !strings.Contains(w.entryLine(s), "ESTABLISHED") })
}

// TestEBPFLeaseEnded lets the lease end while nobody looks after the flows. They end with the first sign of life.
func TestEBPFLeaseEnded(t *testing.T) {
	w := newWorld(t, Config{Engine: EBPF, Threshold: threshold, lease: 2 * time.Second})
	s := w.stream(lab.TCP, web, false)
	w.fast(s)
	w.stop()
	w.watchSlowPath()
	w.until("the lease ends", func() bool { original, reply := w.slowPackets(); return original > 0 && reply > 0 })
	before, err := w.Stats()
	w.check(err)
	w.run()
	w.until("it is offloaded anew", func() bool { s, err := w.Stats(); w.check(err); return s.Offloaded > before.Offloaded })
	w.goesOn(s)
	w.unharmed(s)
}

// TestEBPFOtherInterface has the client send by a second interface, while answers come by the first.
func TestEBPFOtherInterface(t *testing.T) {
	w := newWorld(t, Config{Engine: EBPF, Threshold: threshold})
	s := w.stream(lab.UDP, web, false)
	w.fast(s)
	w.check(w.client.Do(func() error {
		ns, err := netns.Get()
		if err != nil {
			return err
		}
		defer ns.Close()
		return w.links.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "second", Flags: net.FlagUp}, PeerName: "eth1", PeerNamespace: netlink.NsFd(ns)})
	}))
	w.must("sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.second.rp_filter=0")
	l, err := w.links.LinkByName("second")
	w.check(err)
	w.interfaces(5)
	const gateway = "192.0.2.1"
	command := fmt.Sprintf("ip link set eth1 up && ip neigh replace %s lladdr %s dev eth1 && ip route replace %s via %s dev eth1 onlink src %s",
		gateway, l.Attrs().HardwareAddr, s.to.Addr(), gateway, w.client.Addr(false))
	if out, err := w.client.Run(t.Context(), "sh", "-c", command); err != nil {
		t.Fatalf("%s: %v", out, err)
	}
	w.until("it comes by the second interface", func() bool {
		l, err := w.links.LinkByName("second")
		w.check(err)
		return l.Attrs().Statistics.RxPackets > 10
	})
	w.watchSlowPath()
	w.until("both directions are offloaded", func() bool {
		before, _ := w.slowPackets()
		w.goesOn(s)
		after, _ := w.slowPackets()
		return before == after
	})
	w.unharmed(s)
}

// TestEBPFOtherLayout leaves a map of another version, whose flows have the same size and another meaning. It must not be
// adopted.
func TestEBPFOtherLayout(t *testing.T) {
	c := Config{Engine: EBPF, Threshold: threshold}
	w := newWorld(t, c)
	s := w.stream(lab.UDP, web, false)
	w.fast(s)
	w.stop()
	former := w.pinned()
	key, value := w.flowFrom(former, s.Stats().Source)
	w.check(w.Close())
	w.check(os.Remove(w.pins() + "/flows"))
	layout, err := ebpf.NewMap(&ebpf.MapSpec{
		Type: former.Type(), Flags: former.Flags(), KeySize: former.KeySize(), ValueSize: former.ValueSize(), MaxEntries: former.MaxEntries() - 1,
	})
	w.check(err)
	defer layout.Close()
	w.check(layout.Put(key, value))
	w.check(layout.Pin(w.pins() + "/flows"))
	if err := engine.Each(w.node.FD(), func(f *engine.Flow) { t.Errorf("it was read: %v", f) }); !errors.Is(err, ebpf.ErrMapIncompatible) {
		t.Errorf("reading it: %v", err)
	}
	w.start(c)
	if got := w.pinned(); got.MaxEntries() != former.MaxEntries() {
		t.Errorf("the map has %d elements, want %d", got.MaxEntries(), former.MaxEntries())
	}
	w.fast(s)
	w.unharmed(s)
}

// TestEBPFForgedInterface has another pod send with the addresses of a connection that is idle. Its own packets must be
// offloaded again at once, whoever goes on to forge some.
func TestEBPFForgedInterface(t *testing.T) {
	w := newWorld(t, Config{Engine: EBPF, Threshold: threshold})
	thief := w.web[1]
	w.must("sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf." + thief.NodeLink() + ".rp_filter=0")
	s := w.stream(lab.UDP, web, false)
	w.fast(s)
	source := s.Stats().Source
	w.check(s.Close())
	flows := w.pinned()
	in := func() uint32 {
		_, value := w.flowFrom(flows, source)
		return binary.NativeEndian.Uint32(value[inAt:])
	}
	var sender *net.UDPConn
	w.check(w.client.Do(func() (err error) {
		sender, err = net.DialUDP("udp", net.UDPAddrFromAddrPort(source), net.UDPAddrFromAddrPort(s.to.AddrPort))
		return err
	}))
	defer sender.Close()
	own := in()
	forge := func() { w.forgeDatagram(thief, source, s.to.AddrPort) }
	w.until("the forged packets are expected", func() bool { forge(); return in() != own })
	w.until("its own packets are expected again", func() bool {
		for range 50 {
			forge()
			w.check2(sender.Write([]byte("?")))
			if in() == own {
				return true
			}
		}
		return false
	})
	for range 50 {
		forge()
		w.check2(sender.Write([]byte("?")))
		if in() != own {
			t.Fatal("forged packets are expected instead of its own")
		}
	}
}

// TestEBPFMidTransfer returns a connection to the slow path in the middle of a transfer, in each way. Conntrack has not
// seen most of it, and a firewall drops what is invalid for it.
func TestEBPFMidTransfer(t *testing.T) {
	returns := map[string]func(*world){
		"flush": func(w *world) { w.check(w.Flush(t.Context(), Flush{All: true, Hold: time.Minute})) },
		"lease": func(w *world) { w.stop() },
		"MTU":   func(w *world) { w.must("ip link set mtu 1400 dev $out") },
		"route": func(w *world) {
			w.must("ip rule add pref 10 iif $in unreachable; ip rule add pref 9 fwmark 1 lookup main")
		},
	}
	for name, toSlowPath := range returns {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, Config{Engine: EBPF, Threshold: 2, Scope: All, lease: 2 * time.Second})
			w.nft("add table inet walled; add chain inet walled prerouting { type filter hook prerouting priority -300; };" +
				"add rule inet walled prerouting meta mark set 1; add chain inet walled forward { type filter hook forward priority 0; };" +
				"add rule inet walled forward ct state invalid counter drop")
			client, server := w.connect(w.web[0], false)
			w.talk(client, server)
			var received atomic.Int64
			ended := make(chan error, 2)
			go func() {
				block := make([]byte, 1<<16)
				for {
					if _, err := client.Write(block); err != nil {
						ended <- err
						return
					}
				}
			}()
			go func() {
				block := make([]byte, 1<<16)
				for {
					n, err := server.Read(block)
					if err != nil {
						ended <- err
						return
					}
					received.Add(int64(n))
				}
			}()
			goesOn := func() {
				t.Helper()
				before := received.Load()
				w.until("the transfer goes on", func() bool { return received.Load() > before+4<<20 })
			}
			w.check(client.SetDeadline(time.Time{}))
			w.check(server.SetDeadline(time.Time{}))
			goesOn()
			w.watchSlowPath()
			toSlowPath(w)
			if name != "MTU" { // the node tells the sender by ICMP, and packets are small enough from then on
				w.until("it takes the slow path", func() bool { original, _ := w.slowPackets(); return original > 100 })
			}
			goesOn()
			select {
			case err := <-ended:
				t.Error(err)
			default:
			}
		})
	}
}

// TestVerifyEBPF damages what the maps of the program have, with and without a seal, while no packets come: Verify finds it.
func TestVerifyEBPF(t *testing.T) {
	w := newWorld(t, Config{Engine: EBPF, Threshold: threshold, lease: 5 * time.Second})
	s := w.stream(lab.UDP, web, false)
	w.fast(s)
	w.check(s.Close())
	w.verifies("")
	flows, err := ebpf.LoadPinnedMap(w.pins()+"/flows", nil)
	w.check(err)
	defer flows.Close()
	var key, value []byte
	if i := flows.Iterate(); !i.Next(&key, &value) {
		t.Fatal("there are no flows")
	}
	key, value = bytes.Clone(key), bytes.Clone(value)
	put := func(key, value []byte) { t.Helper(); w.check(flows.Put(key, value)) }
	changed := func(at int, sealAgain bool) []byte {
		v := bytes.Clone(value)
		if v[at]++; sealAgain {
			seal(v)
		}
		return v
	}
	const dst, tuple = 16, 40 // the key's own destination, and the size of a tuple: value has the key and the translation
	put(key, changed(tuple+dst, false))
	w.verifies(" is damaged")
	put(key, changed(dst, true)) // of another key
	w.verifies(" is damaged")
	put(key, changed(tuple+dst, true))
	w.verifies(", but conntrack ")
	put(key, value)
	w.verifies("")
	other := changed(dst, true)
	put(other[:tuple], other)
	w.verifies(" is of no connection")
	w.check(flows.Delete(other[:tuple]))
	w.verifies("")

	pins, err := filepath.Glob(w.pins() + "/interface-*")
	if err != nil || len(pins) == 0 {
		t.Skip("NOT RUN: no interface has the program by a pinned link (tcx)")
	}
	l, err := tcx.LoadPinnedLink(pins[0], nil)
	w.check(err)
	defer l.Close()
	info, err := l.Info()
	w.check(err)
	maps := map[string]*ebpf.Map{}
	bpffs.OpenMaps(info.Program, maps)
	defer func() {
		for _, m := range maps {
			m.Close()
		}
	}()
	interfaces := maps["interfaces"]
	var index uint32
	w.check(interfaces.NextKey(nil, &index))
	has, err := interfaces.LookupBytes(index)
	w.check(err)
	w.check(interfaces.Put(uint32(4711), has))
	w.verifies("knows interface 4711, which takes no part")
	w.check(errors.Join(interfaces.Delete(uint32(4711)), interfaces.Delete(index)))
	w.verifies(fmt.Sprintf("does not know interface %d", index))
	w.check(interfaces.Put(index, has))
	w.verifies("")
	w.config.lease = 1 // of a nanosecond
	w.verifies("which no proxy gives")
	w.config.lease = 5 * time.Second
	w.stop()
	w.until("Verify finds that the lease has ended", func() bool {
		_, faults, err := Verify(t.Context(), w.config, &w.state.Full().Change)
		return err == nil && strings.Contains(strings.Join(faults, "\n"), "does nothing: no proxy has renewed its lease for ")
	})
}

// TestEBPFNeighbour has the kernel forget the pods' link addresses, as it does when it collects entries that only the program
// uses. The slow path asks for them, and the connection stays offloaded.
func TestEBPFNeighbour(t *testing.T) {
	for _, ipv6 := range []bool{false, true} {
		t.Run(fmt.Sprintf("ipv6=%t", ipv6), func(t *testing.T) {
			w := newWorld(t, Config{Engine: EBPF, Threshold: threshold})
			s := w.stream(lab.UDP, web, ipv6)
			w.fast(s)
			before, err := w.Stats()
			w.check(err)
			w.watchSlowPath()
			w.must(fmt.Sprintf("ip neigh del %s dev $in; ip neigh del %s dev $out", w.client.Addr(ipv6), w.web[0].Addr(ipv6)))
			w.until("packets take the slow path", func() bool { original, reply := w.slowPackets(); return original > 0 && reply > 0 })
			w.noSlowPackets(s)
			if after, err := w.Stats(); err != nil || after.Offloaded != before.Offloaded {
				t.Errorf("%+v (%v), want %d offloads: it was offloaded again", after, err, before.Offloaded)
			}
			w.unharmed(s)
		})
	}
}
