// SPDX-License-Identifier: Apache-2.0

package fastpath

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	tcx "github.com/cilium/ebpf/link"
	"github.com/slipstream-proxy/slipstream/internal/fastpath/iface"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// inKernel returns the names of the flowtable's devices.
func (w *world) inKernel() string {
	w.t.Helper()
	conn, err := nfnl.Dial(w.node.FD())
	w.check(err)
	defer conn.Close()
	t, err := conn.Contents(table)
	w.check(err)
	var names []string
	if f := t.Flowtable(flowtableName); f != nil {
		for _, d := range f.Devices {
			names = append(names, d.Name)
		}
	} else {
		names = w.withProgram("forward")
	}
	slices.Sort(names)
	// The set of the rules must have the same ones.
	all := map[string]bool{}
	w.check(nfnl.Undisturbed(func() error {
		clear(all)
		return conn.Elements(table, interfaces.Name, func(e nfnl.Element) {
			all[strings.TrimRight(string(e.Key), "\x00")] = true
		})
	}))
	members := slices.Sorted(maps.Keys(all))
	if !slices.Equal(names, members) {
		return fmt.Sprintf("%v, but members are %v", names, members)
	}
	return strings.Join(names, " ")
}

// withProgram returns the names of the interfaces to which a BPF program of that name is attached.
func (w *world) withProgram(name string) (names []string) {
	w.t.Helper()
	isOurs := func(id ebpf.ProgramID) bool {
		p, err := ebpf.NewProgramFromID(id)
		if err != nil {
			return false
		}
		defer p.Close()
		info, err := p.Info()
		return err == nil && info.Name == name
	}
	w.check(w.node.Do(func() error {
		all, err := netlink.LinkList()
		for _, l := range all {
			programs, e := tcx.QueryPrograms(tcx.QueryOptions{Target: l.Attrs().Index, Attach: ebpf.AttachTCXIngress})
			is := e == nil && slices.ContainsFunc(programs.Programs, func(p tcx.AttachedProgram) bool { return isOurs(p.ID) })
			if e != nil { // before Linux 6.6
				filters, _ := netlink.FilterList(l, netlink.HANDLE_MIN_INGRESS)
				is = slices.ContainsFunc(filters, func(f netlink.Filter) bool {
					b, is := f.(*netlink.BpfFilter)
					return is && strings.HasPrefix(b.Name, "slipstream-fastpath") && isOurs(ebpf.ProgramID(b.Id))
				})
			}
			if is {
				names = append(names, l.Attrs().Name)
			}
		}
		return err
	}))
	return names
}

// has waits until the flowtable has these devices, in order.
func (w *world) has(names string) {
	w.t.Helper()
	got := ""
	defer func() {
		if got != names {
			w.t.Logf("the flowtable has %s", got)
		}
	}()
	w.until("the flowtable has "+names, func() bool { got = w.inKernel(); return got == names })
}

// dummy adds an interface that is up, with no routes. Not every kernel has the driver dummy.
func (w *world) dummy(name string) netlink.Link {
	w.t.Helper()
	d := netlink.NewVeth(netlink.LinkAttrs{Name: name, Flags: net.FlagUp})
	d.PeerName, d.PeerNamespace = name, netlink.NsFd(w.client.FD())
	w.check(w.links.LinkAdd(d))
	return d
}

// rename renames an interface that is up. Before Linux 6.2 it must be down meanwhile.
func (w *world) rename(link netlink.Link, name string) {
	w.t.Helper()
	err := w.links.LinkSetName(link, name)
	if !errors.Is(err, unix.EBUSY) {
		w.check(err)
		return
	}
	w.check(w.links.LinkSetDown(link))
	w.check(w.links.LinkSetName(link, name))
	w.check(w.links.LinkSetUp(link))
}

// TestInterfaces adds, removes and changes interfaces.
func TestInterfaces(t *testing.T) { engines(t, testInterfaces) }

func testInterfaces(t *testing.T, engine Engine) {
	w := newWorld(t, Config{Engine: engine, Threshold: threshold})
	s := w.stream(lab.TCP, web, true)
	w.fast(s)
	const four = "eth0 veth1 veth2 veth3"
	w.has(four)
	a := w.dummy("a")
	w.has("a " + four)
	w.rename(a, "b")
	w.has("b " + four)
	for range 3 { // another one of the same name
		w.check(w.links.LinkDel(a))
		a = w.dummy("b")
		w.has("b " + four)
	}
	w.check(w.links.LinkSetDown(a))
	w.has(four)
	w.check(w.links.LinkSetUp(a))
	w.has("b " + four)

	// Ports of a bridge do not take part.
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "bridge"}}
	w.check(w.links.LinkAdd(bridge))
	w.has("b " + four)
	w.check(w.links.LinkSetUp(bridge))
	w.has("b bridge " + four)
	w.check(w.links.LinkSetMaster(a, bridge))
	w.has("bridge " + four)
	w.check(w.links.LinkSetNoMaster(a))
	w.has("b bridge " + four)
	w.check(w.links.LinkDel(bridge))
	w.check(w.links.LinkDel(a))
	w.has(four)
	w.check(w.Check(w.t.Context()))
	w.goesOn(s)
	w.unharmed(s)
	if s, err := w.Stats(); err != nil || s.Errors > 0 {
		t.Errorf("%+v, %v", s, err)
	}
}

// TestJoin adds pods, whose connections must take the fast path, during another connection.
func TestJoin(t *testing.T) { engines(t, testJoin) }

func testJoin(t *testing.T, engine Engine) {
	w := newWorld(t, Config{Engine: engine, Threshold: threshold})
	s := w.stream(lab.TCP, web, false)
	w.fast(s)
	for i := range 5 {
		pod := w.newPod(w.node, fmt.Sprint("new-", i), 100+i)
		w.fast(w.streamFrom(pod, lab.UDP, web, i%2 == 0, interval))
		w.check(pod.Delete())
	}
	w.has("eth0 veth1 veth2 veth3")
	w.goesOn(s)
	w.fast(s)
	w.unharmed(s)
	w.check(w.Check(w.t.Context()))
}

// TestExpression selects interfaces. A connection between one that takes part and one that
// does not is not offloaded, and it returns to the slow path when an interface is deselected.
func TestExpression(t *testing.T) { engines(t, testExpression) }

func testExpression(t *testing.T, engine Engine) {
	selector, err := iface.Compile(`interface.name in ["veth1", "veth2", "gone"] && interface.mtu <= 1500`)
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, Config{Engine: engine, Threshold: threshold, Interfaces: selector})
	w.has("veth1 veth2")
	w.endpoints(other, w.web[1]) // veth3
	w.apply()
	in, out := w.stream(lab.TCP, web, false), w.stream(lab.TCP, other, false)
	w.fast(in)
	for range 5 {
		w.goesOn(out)
	}
	if _, is := out.flow(); is {
		t.Error("a connection by an interface that does not take part is offloaded")
	}
	link, err := w.links.LinkByName("veth2")
	w.check(err)
	w.check(w.links.LinkSetMTU(link, 2000))
	w.has("veth1")
	w.until("the connection is back", func() bool { _, is := in.flow(); return !is })
	w.goesOn(in)
	w.check(w.links.LinkSetMTU(link, 1500))
	w.has("veth1 veth2")
	w.fast(in)
	// A renamed interface is selected by its new name.
	gone := w.dummy("gone")
	w.has("gone veth1 veth2")
	w.rename(gone, "unmeant")
	w.has("veth1 veth2")
	w.goesOn(in, out)
	w.unharmed(in, out)
	w.check(w.Check(w.t.Context()))
}

// TestAddresses selects interfaces by addresses, which are added later.
func TestAddresses(t *testing.T) { engines(t, testAddresses) }

func testAddresses(t *testing.T, engine Engine) {
	selector, err := iface.Compile(`interface.addresses.exists(a, a.startsWith("198.51.100."))`)
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, Config{Engine: engine, Threshold: threshold, Interfaces: selector})
	w.has("")
	a := w.dummy("a")
	addr, err := netlink.ParseAddr("198.51.100.1/24")
	w.check(err)
	w.check(w.links.AddrAdd(a, addr))
	w.has("a")
	w.check(w.links.AddrDel(a, addr))
	w.has("")
}

// TestManyInterfaces uses many interfaces, most of which exist at the start.
func TestManyInterfaces(t *testing.T) { engines(t, testManyInterfaces) }

func testManyInterfaces(t *testing.T, engine Engine) {
	many := map[Engine]int{Flowtable: 1000, EBPF: 100}[engine] // the kernel attaches a program in milliseconds
	w := newQuietWorld(t, engine)
	begin := time.Now()
	for i := range many {
		w.dummy(fmt.Sprintf("many%d", i))
	}
	t.Logf("made %d interfaces in %v", many, time.Since(begin))
	w.start(Config{Engine: engine, Threshold: threshold})
	s := w.stream(lab.TCP, web, false)
	w.fast(s)
	count := func() int { return len(strings.Fields(w.inKernel())) }
	w.until("all interfaces are in the flowtable", func() bool { return count() == many+4 })
	// Adding devices to the flowtable does not affect a flow. (Setting up an interface
	// does: the flow then takes the slow path once, some time later.)
	for try, again := 1, w.offloaded(); again > 0; try++ {
		w.stop()
		for i := range 20 {
			w.dummy(fmt.Sprintf("more%d-%d", try, i))
		}
		many += 20
		w.goesOn(s)
		w.fast(s)
		before := w.offloaded()
		w.run()
		w.until("all interfaces take part", func() bool { return count() == many+4 })
		w.goesOn(s)
		if again = w.offloaded() - before; again > 0 && try == 5 {
			t.Fatalf("a flow between other interfaces was offloaded again, %d times, when interfaces were added, %d times", again, try)
		}
	}
	w.check(w.Flush(w.t.Context(), Flush{All: true}))
	w.goesOn(s)
	w.fast(s)
	w.check(w.Check(w.t.Context()))
	fewer := many / 3
	for i := range fewer {
		link, err := w.links.LinkByName(fmt.Sprintf("many%d", i))
		w.check(err)
		if i%2 == 0 {
			w.check(w.links.LinkSetDown(link))
		} else {
			w.check(w.links.LinkDel(link))
		}
	}
	w.until("the deleted interfaces have left", func() bool { return count() == many+4-fewer })
	w.goesOn(s)
	w.unharmed(s)
	w.check(w.Check(w.t.Context()))
	if s, err := w.Stats(); err != nil || s.Errors > 0 || s.Interfaces != many+4-fewer {
		t.Errorf("%+v, %v", s, err)
	}
	w.stop()
	begin = time.Now()
	w.check(w.Stop())
	t.Logf("took the table away in %v", time.Since(begin))
}

// TestHardware configures hardware offload with interfaces that do not support it.
func TestHardware(t *testing.T) {
	for _, h := range []Hardware{Auto, On, Off} {
		t.Run(string(h), func(t *testing.T) {
			var reported atomic.Int64
			w := newWorld(t, Config{Threshold: threshold, Hardware: h, NoHardware: func(error) { reported.Add(1) }})
			s := w.stream(lab.TCP, web, false)
			w.fast(s)
			if f, _ := s.flow(); f.Hardware {
				t.Errorf("%+v", f)
			}
			if s, err := w.Stats(); err != nil || s.Hardware || s.Interfaces != 4 || s.Errors != 0 {
				t.Errorf("%+v, %v", s, err)
			}
			if said := len(w.said) > 0; said != (h == On) {
				t.Errorf("it logged an error: %t", said)
			}
			if n := reported.Load(); n > 1 || n == 1 != (h == On) {
				t.Errorf("it reported %d times", n)
			}
		})
	}
}

// TestHardwareRefusedLater adds an interface without hardware offload to a flowtable with it.
// The kernel accepts the flag for a flowtable without devices.
func TestHardwareRefusedLater(t *testing.T) {
	none, err := iface.Compile(`interface.name.endsWith("x")`)
	if err != nil {
		t.Fatal(err)
	}
	w := newQuietWorld(t, Flowtable)
	w.startWith(Config{Threshold: threshold, Hardware: On, Interfaces: none}, func(c *Controller) { c.engine.(*flowtableEngine).hardware = true })
	if s, err := w.Stats(); err != nil || !s.Hardware {
		t.Fatalf("%+v, %v: the flowtable is not one for hardware", s, err)
	}
	// A flush keeps the flag, also if the kernel does not return the flowtable.
	flushed := func() (flags uint32) {
		w.mu.Lock() // Run uses the connection, too
		defer w.mu.Unlock()
		t, err := w.conn.Contents(table)
		w.check(err)
		flags = t.Flowtable(flowtableName).Flags
		t.Flowtables = nil
		b, err := w.engine.renew(t)
		w.check(err)
		w.check(w.conn.Commit(0, b))
		return flags
	}
	w.check(w.Flush(t.Context(), Flush{All: true}))
	for range 2 {
		if flags := flushed(); flags&nfnl.FlowtableHardware == 0 {
			t.Errorf("the flowtable has the flags %#x after a flush", flags)
		}
	}
	w.dummy("x")
	w.has("x")
	if s, err := w.Stats(); err != nil || s.Hardware || s.Errors != 0 {
		t.Errorf("%+v, %v", s, err)
	}
	w.check(w.Check(w.t.Context()))
}
