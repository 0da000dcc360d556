// SPDX-License-Identifier: Apache-2.0

package fastpath

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	tcx "github.com/cilium/ebpf/link"
	"github.com/safchain/ethtool"
	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	engine "github.com/slipstream-proxy/slipstream/internal/fastpath/ebpf"
	"github.com/slipstream-proxy/slipstream/internal/fastpath/flows"
	"github.com/slipstream-proxy/slipstream/internal/fastpath/iface"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"github.com/vishvananda/netlink"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

// plain has pods compute checksums and send no large packets, so that what is received is checked.
func (w *world) plain(pods ...*lab.Pod) {
	w.t.Helper()
	for _, p := range pods {
		w.check(p.Do(func() error { return plainLink("eth0") }))
	}
}

func plainLink(name string) error {
	e, err := ethtool.NewEthtool()
	if err != nil {
		return err
	}
	defer e.Close()
	return e.Change(name, map[string]bool{"tx-checksum-ip-generic": false, "tx-tcp-segmentation": false, "tx-generic-segmentation": false, "rx-gro": false})
}

// noChecksumErrors fails the test if pods have received packets with wrong checksums.
func (w *world) noChecksumErrors(pods ...*lab.Pod) {
	w.t.Helper()
	for _, p := range pods {
		out, err := p.Run(w.t.Context(), "nstat", "-as", "*InCsumErrors") // those that are not 0
		w.check(err)
		if strings.Contains(string(out), "InCsumErrors") {
			w.t.Errorf("%s has received wrong checksums:\n%s", p.Name(), out)
		}
	}
}

// TestEBPFChecksums offloads connections whose packets have real checksums, translated at one end
// or, as those of a pod to itself, at both.
func TestEBPFChecksums(t *testing.T) {
	w := newWorld(t, Config{Engine: EBPF, Threshold: threshold})
	w.plain(w.client, w.web[0])
	for _, from := range []*lab.Pod{w.client, w.web[0]} {
		each(t, func(t *testing.T, p lab.Protocol, ipv6 bool) {
			s := w.streamFrom(from, p, web, ipv6, interval)
			w.fast(s)
			w.noSlowPackets(s)
			w.unharmed(s)
			w.check(s.Close())
		})
	}
	w.noChecksumErrors(w.client, w.web[0])
}

// TestEBPFPartialChecksums offloads connections whose packets have no checksums yet when they are
// translated, as pods leave these to the hardware. They are computed where the packets leave the node.
func TestEBPFPartialChecksums(t *testing.T) {
	w := newQuietWorld(t, EBPF)
	for _, p := range []*lab.Pod{w.client, w.web[0]} {
		if said := w.sh("tc qdisc add dev " + p.NodeLink() + " root pfifo"); said != "" { // without it they go into the pod directly
			t.Fatal(said)
		}
		w.check(w.node.Do(func() error { return plainLink(p.NodeLink()) }))
	}
	w.start(Config{Engine: EBPF, Threshold: threshold})
	each(t, func(t *testing.T, p lab.Protocol, ipv6 bool) {
		s := w.stream(p, web, ipv6)
		w.fast(s)
		w.noSlowPackets(s)
		w.unharmed(s)
		w.check(s.Close())
	})
	w.noChecksumErrors(w.client, w.web[0])
}

// TestEBPFZeroChecksum sends UDP datagrams without a checksum, and with one that is 0 after the
// translation, which has to be sent as 0xffff. Receivers drop the first with another checksum, and
// the second, of IPv6, with 0.
func TestEBPFZeroChecksum(t *testing.T) {
	w := newWorld(t, Config{Engine: EBPF, Threshold: threshold})
	w.plain(w.client, w.web[0])
	for _, ipv6 := range []bool{false, true} {
		var c *net.UDPConn
		w.check(w.client.Do(func() (err error) {
			c, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(frontend(desired.UDP, web, ipv6).AddrPort))
			return err
		}))
		defer c.Close()
		local := c.LocalAddr().(*net.UDPAddr).AddrPort()
		datagram := zeroChecksum(local, portOf(w.web[0].Addr(ipv6)))
		if !ipv6 {
			raw, err := c.SyscallConn()
			w.check(err)
			w.check(raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_NO_CHECK, 1) }))
			w.check(err)
			datagram = []byte("any")
		}
		pass := func(b []byte) {
			t.Helper()
			w.check2(c.Write(b))
			w.check(c.SetReadDeadline(time.Now().Add(20 * time.Second)))
			var answer [512]byte
			if n, err := c.Read(answer[:]); err != nil || !bytes.HasSuffix(answer[:n], b) {
				t.Fatalf("IPv6 %t: answer %q to %q: %v", ipv6, answer[:n], b, err)
			}
		}
		w.until("it is offloaded", func() (is bool) {
			pass([]byte("another"))
			w.check(engine.Each(w.node.FD(), func(f *engine.Flow) { is = is || f.Original.Src == local }))
			return is
		})
		w.watchSlowPath()
		for range 10 {
			pass(datagram)
		}
		if original, reply := w.slowPackets(); original+reply > 0 {
			t.Errorf("IPv6 %t: %d and %d packets went the slow path", ipv6, original, reply)
		}
	}
	w.noChecksumErrors(w.client, w.web[0])
}

// zeroChecksum returns four bytes that have a checksum of 0 in a UDP datagram.
func zeroChecksum(from, to netip.AddrPort) []byte {
	const length = 8 + 4
	b := slices.Concat(from.Addr().AsSlice(), to.Addr().AsSlice(), []byte{0, unix.IPPROTO_UDP, 0, length, 0, length})
	b = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(b, from.Port()), to.Port())
	sum := uint32('z'<<8 | 'z')
	for ; len(b) > 0; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return binary.BigEndian.AppendUint16([]byte("zz"), ^uint16(sum))
}

// connect connects from the client to a server of the test's own in a pod.
func (w *world) connect(server *lab.Pod, ipv6 bool) (client, accepted *net.TCPConn) {
	w.t.Helper()
	const port = 9000
	var l net.Listener
	w.check(server.Do(func() (err error) {
		l, err = net.Listen("tcp", netip.AddrPortFrom(server.Addr(ipv6), port).String())
		return err
	}))
	defer l.Close()
	w.check(w.client.Do(func() error {
		c, err := net.Dial("tcp", netip.AddrPortFrom(server.Addr(ipv6), port).String())
		if err == nil {
			client = c.(*net.TCPConn)
		}
		return err
	}))
	c, err := l.Accept()
	w.check(err)
	accepted = c.(*net.TCPConn)
	w.t.Cleanup(func() { client.Close(); accepted.Close() })
	return client, accepted
}

// transfer sends bytes from one end to the other, one way and back, and checks them.
func (w *world) transfer(a, b *net.TCPConn, size int) {
	w.t.Helper()
	want := make([]byte, size)
	for i := range want {
		want[i] = byte(i * 7 >> 3)
	}
	for _, ends := range [][2]*net.TCPConn{{a, b}, {b, a}} {
		w.check(ends[0].SetDeadline(time.Now().Add(time.Minute)))
		w.check(ends[1].SetDeadline(time.Now().Add(time.Minute)))
		sent := make(chan error, 1)
		go func() { _, err := ends[0].Write(want); sent <- err }()
		got := make([]byte, size)
		_, err := io.ReadFull(ends[1], got)
		w.check(err)
		w.check(<-sent)
		if !bytes.Equal(got, want) {
			w.t.Fatal("other bytes arrived")
		}
	}
}

// talk has the ends talk until the connection is offloaded.
func (w *world) talk(client, server *net.TCPConn) {
	w.t.Helper()
	local := client.LocalAddr().(*net.TCPAddr).AddrPort()
	w.until(fmt.Sprintf("%v is offloaded", local), func() (is bool) {
		w.transfer(client, server, 1<<10)
		w.check(engine.Each(w.node.FD(), func(f *engine.Flow) { is = is || f.Original.Src == local }))
		return is
	})
}

// TestEBPFEnd ends offloaded connections by FIN and by RST. The peer and conntrack must notice, and
// the flows must end at once.
func TestEBPFEnd(t *testing.T) {
	for _, reset := range []bool{false, true} {
		for _, byServer := range []bool{false, true} {
			for _, ipv6 := range []bool{false, true} {
				t.Run(fmt.Sprintf("reset=%t/byServer=%t/ipv6=%t", reset, byServer, ipv6), func(t *testing.T) {
					w := newWorld(t, Config{Engine: EBPF, Threshold: 2, Scope: All})
					client, server := w.connect(w.web[0], ipv6)
					w.talk(client, server)
					w.transfer(client, server, 16<<20)
					from, to := client, server
					if byServer {
						from, to = server, client
					}
					want := io.EOF.Error()
					if reset {
						w.check(from.SetLinger(0))
						want = "connection reset by peer"
					}
					w.check(from.Close())
					w.check(to.SetReadDeadline(time.Now().Add(20 * time.Second)))
					if _, err := to.Read(make([]byte, 1)); err == nil || !strings.Contains(err.Error(), want) {
						t.Errorf("the peer's end: %v, want %s", err, want)
					}
					w.check(to.Close())
					port := client.LocalAddr().(*net.TCPAddr).Port
					family := map[bool]string{false: "ipv4", true: "ipv6"}[ipv6]
					w.until("conntrack has seen the end", func() bool {
						line := w.sh(fmt.Sprintf("conntrack -L -f %s -p tcp --sport %d 2>/dev/null", family, port))
						return strings.Contains(line, "TIME_WAIT") || strings.Contains(line, " CLOSE ") || strings.TrimSpace(line) == ""
					})
					w.check(engine.Each(w.node.FD(), func(f *engine.Flow) { t.Errorf("%v is left", f.Original) }))
				})
			}
		}
	}
}

// TestEBPFShort makes connections that the server ends while they are being offloaded. No packet may
// miss its translation, and no conntrack entry may get the timeout of an established connection.
func TestEBPFShort(t *testing.T) {
	w := newWorld(t, Config{Engine: EBPF, Threshold: 1})
	pod := w.newPod(w.node, "short", 13)
	w.endpoints(other, pod)
	w.apply()
	var l net.Listener
	w.check(pod.Do(func() (err error) {
		l, err = net.Listen("tcp", fmt.Sprintf(":%d", targets))
		return err
	}))
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.CopyN(c, c, 1)
			c.Close()
		}
	}()
	w.check(w.client.Do(func() error {
		for n := range 6000 {
			c, err := net.Dial("tcp", frontend(desired.TCP, other, false).AddrPort.String())
			if err != nil {
				return err
			}
			err = c.SetDeadline(time.Now().Add(30 * time.Second))
			if err == nil {
				_, err = c.Write([]byte("?"))
			}
			if err == nil {
				_, err = io.ReadAll(c)
			}
			if err := errors.Join(err, c.Close()); err != nil {
				return fmt.Errorf("connection %d: %w", n+1, err)
			}
		}
		return nil
	}))
	w.until("all entries have seen the end", func() bool {
		return w.sh("conntrack -L -p tcp --state ESTABLISHED 2>/dev/null") == ""
	})
	for line := range strings.Lines(w.sh("conntrack -L -p tcp 2>/dev/null")) {
		if timeout, err := strconv.Atoi(strings.Fields(line)[2]); err != nil || timeout > 3600 {
			t.Fatalf("an entry lives on: %s", line)
		}
	}
	s, err := w.Stats()
	w.check(err)
	t.Logf("%d connections were offloaded", s.Offloaded) // none, if each ended too soon
}

// TestEBPFConntrack lets the entry of a busy connection nearly expire, and then deletes it.
func TestEBPFConntrack(t *testing.T) {
	w := newWorld(t, Config{Engine: EBPF, Threshold: threshold})
	streams := []*stream{w.stream(lab.TCP, web, false), w.stream(lab.UDP, web, true)}
	w.fast(streams...)
	for _, s := range streams {
		w.until("the entry has its timeout again", func() bool {
			w.expire(s, 5)
			for end := time.Now().Add(2 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
				if w.timeout(s) > 60 {
					return true
				}
			}
			return false
		})
		if _, is := s.flow(); !is {
			t.Errorf("%v is not offloaded any more", s.to)
		}
	}
	w.unharmed(streams...)
}

// TestEBPFRoute removes the route of a connection for a while.
func TestEBPFRoute(t *testing.T) {
	w := newWorld(t, Config{Engine: EBPF, Threshold: threshold})
	s, bystander := w.stream(lab.UDP, web, false), w.stream(lab.TCP, web, true)
	w.fast(s, bystander)
	route := w.web[0].Addr(false).String()
	before := strings.TrimSpace(w.sh("ip route show " + route))
	if said := w.sh("ip route replace blackhole " + route); said != "" || before == "" {
		t.Fatal(said)
	}
	w.until("it ends", func() bool { _, is := s.flow(); return !is && s.Stats().Failed > 0 })
	if said := w.sh("ip route del " + route + "; ip route add " + before); said != "" {
		t.Fatal(said)
	}
	w.goesOn(s)
	w.fast(s)
	w.goesOn(bystander)
	w.unharmed(bystander)
}

// TestEBPFNextHop forgets the link addresses of another node again and again. Connections to its pods go on,
// and stay offloaded.
func TestEBPFNextHop(t *testing.T) {
	w := newQuietWorld(t, EBPF)
	if said := w.sh("tc qdisc add dev eth0 root pfifo"); said != "" { // without it packets go to the other end of the veth
		t.Fatal(said)
	}
	w.start(Config{Engine: EBPF, Threshold: threshold})
	far := w.newPod(w.newNode("n2", 12, 2), "far", 11)
	w.serve(far)
	w.endpoints(web, far)
	w.apply()
	each(t, func(t *testing.T, p lab.Protocol, ipv6 bool) {
		s := w.stream(p, web, ipv6)
		for range 5 {
			w.fast(s)
			if said := w.sh("ip -4 neigh flush dev eth0; ip -6 neigh flush dev eth0"); said != "" {
				t.Fatal(said)
			}
			w.goesOn(s)
		}
		w.fast(s)
		w.noSlowPackets(s)
		if n := s.Stats(); n.Ended || n.Moved > 0 { // the kernel drops packets that wait for an address it forgets
			t.Errorf("%+v", n)
		}
	})
}

// TestEBPFHops looks at the TTL and the hop limit of packets on the fast path: the node counts as one.
func TestEBPFHops(t *testing.T) {
	w := newWorld(t, Config{Engine: EBPF, Threshold: 2, Scope: All})
	for _, v6 := range []bool{false, true} {
		var ends [2]*net.UDPConn
		for i, p := range []*lab.Pod{w.client, w.web[0]} {
			w.check(p.Do(func() (err error) {
				ends[i], err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(p.Addr(v6), 0)))
				return err
			}))
			defer ends[i].Close()
		}
		local := ends[0].LocalAddr().(*net.UDPAddr).AddrPort()
		hops := func(from, to *net.UDPConn) (n int) {
			w.check2(from.WriteTo([]byte("?"), to.LocalAddr()))
			w.check(to.SetReadDeadline(time.Now().Add(20 * time.Second)))
			if v6 {
				c := ipv6.NewPacketConn(to)
				w.check(c.SetControlMessage(ipv6.FlagHopLimit, true))
				_, m, _, err := c.ReadFrom(make([]byte, 10))
				w.check(err)
				if m != nil { // the first packet may have come before
					n = m.HopLimit
				}
				return n
			}
			c := ipv4.NewPacketConn(to)
			w.check(c.SetControlMessage(ipv4.FlagTTL, true))
			_, m, _, err := c.ReadFrom(make([]byte, 10))
			w.check(err)
			if m != nil {
				n = m.TTL
			}
			return n
		}
		w.until("it is offloaded", func() (is bool) {
			hops(ends[0], ends[1])
			hops(ends[1], ends[0])
			w.check(engine.Each(w.node.FD(), func(f *engine.Flow) { is = is || f.Original.Src == local }))
			return is
		})
		for range 3 {
			if there, back := hops(ends[0], ends[1]), hops(ends[1], ends[0]); there != 63 || back != 63 {
				t.Errorf("IPv6 %t: packets arrived with a TTL of %d and %d, want 63", v6, there, back)
			}
		}
	}
}

// pins is the folder of what the engine has pinned.
func (w *world) pins() string {
	w.t.Helper()
	var ns unix.Stat_t
	w.check(unix.Fstat(w.node.FD(), &ns))
	return fmt.Sprintf("/sys/fs/bpf/slipstream-fastpath/%d", ns.Ino)
}

// TestEBPFFull fills the map. Connections without space stay on the slow path.
func TestEBPFFull(t *testing.T) {
	w := newWorld(t, Config{Engine: EBPF, Threshold: threshold})
	first := w.stream(lab.TCP, web, false)
	w.fast(first)
	flows, err := ebpf.LoadPinnedMap(w.pins()+"/flows", nil)
	w.check(err)
	defer flows.Close()
	for n := uint32(0); err == nil; n++ {
		key := make([]byte, flows.KeySize())
		binary.NativeEndian.PutUint32(key, n)
		value := make([]byte, flows.ValueSize())
		binary.NativeEndian.PutUint64(value[checkedAt:], 1<<62) // the time of its last packet, so that it stays
		err = flows.Put(key, value)
	}
	if !errors.Is(err, unix.E2BIG) {
		t.Fatal(err)
	}
	second := w.stream(lab.TCP, web, false)
	w.until("it is refused", func() bool {
		s, err := w.Stats()
		w.check(err)
		return s.Refused > 0
	})
	w.goesOn(first, second)
	if _, is := second.flow(); is {
		t.Error("it is offloaded although the map is full")
	}
	w.unharmed(first, second)
}

// counter is a program that counts packets and passes them on.
func (w *world) counter() (program *ebpf.Program, count func() uint64) {
	const tcxNext = -1
	return w.counterOf(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, AttachType: ebpf.AttachTCXIngress}, tcxNext)
}

// counterOf completes a program that counts packets, and has a verdict for them.
func (w *world) counterOf(spec *ebpf.ProgramSpec, verdict int32) (program *ebpf.Program, count func() uint64) {
	w.t.Helper()
	counter, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	w.check(err)
	w.t.Cleanup(func() { counter.Close() })
	spec.License = "GPL"
	spec.Instructions = asm.Instructions{
		asm.StoreImm(asm.RFP, -4, 0, asm.Word),
		asm.LoadMapPtr(asm.R1, counter.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -4),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "out"),
		asm.Mov.Imm(asm.R1, 1),
		asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
		asm.Mov.Imm(asm.R0, verdict).WithSymbol("out"), asm.Return(),
	}
	program, err = ebpf.NewProgram(spec)
	w.check(err)
	w.t.Cleanup(func() { program.Close() })
	return program, func() (n uint64) {
		w.t.Helper()
		w.check(counter.Lookup(uint32(0), &n))
		return n
	}
}

// TestEBPFBeside attaches programs of others to interfaces: at the ingress one before ours and one after it,
// and one at the egress to a pod. All have to see all packets, of a connection that was offloaded before, too.
func TestEBPFBeside(t *testing.T) {
	kerneltest.Require(t, kerneltest.TCX)
	w := newWorld(t, Config{Engine: EBPF, Threshold: threshold})
	attach := func(to *lab.Pod, at ebpf.AttachType, anchor tcx.Anchor) (count func() uint64) {
		program, count := w.counter()
		l, err := w.links.LinkByName(to.NodeLink())
		w.check(err)
		w.check(w.node.Do(func() error {
			other, err := tcx.AttachTCX(tcx.TCXOptions{Interface: l.Attrs().Index, Program: program, Attach: at, Anchor: anchor})
			if err == nil {
				t.Cleanup(func() { other.Close() })
			}
			return err
		}))
		return count
	}
	s := w.stream(lab.TCP, web, false)
	w.fast(s)
	w.check(w.Check(t.Context()))
	seen := []func() uint64{
		attach(w.web[0], ebpf.AttachTCXEgress, tcx.Tail()),
		attach(w.client, ebpf.AttachTCXIngress, tcx.Head()),
		attach(w.client, ebpf.AttachTCXIngress, tcx.Tail()),
	}
	if err := w.Check(t.Context()); !errors.Is(err, dataplane.ErrDamaged) {
		t.Fatalf("Check: %v", err)
	}
	w.check2(w.Reconcile(t.Context(), &w.state.Full().Change))
	w.check(w.Check(t.Context()))
	for _, count := range seen {
		w.until("it sees packets", func() bool {
			before := count()
			w.goesOn(s)
			return count() >= before+9
		})
	}
	w.fast(s)
	w.noSlowPackets(s)
	for _, count := range seen {
		w.sees(s, func() int { return int(count()) })
	}
	w.noSlowPackets(s)
	w.unharmed(s)
}

// TestEBPFIdle deletes the flows of an idle connection. It goes on, and is offloaded again.
func TestEBPFIdle(t *testing.T) {
	w := newWorld(t, Config{Engine: EBPF, Threshold: 1})
	s := w.streamFrom(w.client, lab.TCP, web, false, 5*time.Second)
	busy := w.stream(lab.UDP, web, true)
	w.fast(s, busy)
	w.check(w.engine.(*ebpfEngine).program.Sweep(time.Hour))
	for _, s := range []*stream{s, busy} {
		if _, is := s.flow(); !is {
			t.Errorf("%v is not offloaded any more, although it has not been idle for an hour", s.to)
		}
	}
	w.until("the flow is idle", func() bool {
		w.check(w.engine.(*ebpfEngine).program.Sweep(2 * time.Second))
		_, is := s.flow()
		return !is
	})
	before := s.Stats().Received
	w.until("it goes on", func() bool { return s.Stats().Received > before+1 })
	w.fast(s)
	w.unharmed(s, busy)
}

// TestEBPFIPsec adds an IPsec policy. No connection may be offloaded, as the program would send its
// packets without encryption.
func TestEBPFIPsec(t *testing.T) {
	w := newWorld(t, Config{Engine: EBPF, Threshold: threshold})
	s := w.stream(lab.TCP, web, false)
	w.fast(s)
	said := w.sh("ip xfrm policy add dir out src 192.0.2.1/32 dst 192.0.2.2/32 tmpl proto esp mode tunnel")
	if said != "" {
		t.Skip("NOT RUN: " + said)
	}
	w.until("it returns to the slow path", func() bool { _, is := s.flow(); return !is })
	w.sh("ip xfrm policy flush")
	w.fast(s)
	w.unharmed(s)
	if said := w.sh("ip xfrm policy setdefault fwd block"); said != "" { // what no policy names is dropped
		t.Skip("NOT RUN: " + said)
	}
	w.until("it returns to the slow path, which drops it", func() bool { _, is := s.flow(); return !is })
	before := s.Stats().Received
	w.until("a message gets no answer", func() bool { return s.Stats().Failed > 0 })
	if after := s.Stats().Received; after > before+1 {
		t.Errorf("%d answers although packets are dropped", after-before)
	}
}

// TestEBPFQueue gives a pod's interface a queueing discipline. Packets must pass it, also of a connection
// that was offloaded before.
func TestEBPFQueue(t *testing.T) {
	w := newWorld(t, Config{Engine: EBPF, Threshold: threshold})
	out := w.web[0].NodeLink()
	early := w.stream(lab.UDP, web, true)
	w.fast(early)
	if said := w.sh("tc qdisc add dev " + out + " root pfifo"); said != "" {
		t.Fatal(said)
	}
	sent := func() (n uint64) {
		l, err := w.links.LinkByName(out)
		w.check(err)
		all, err := w.links.QdiscList(l)
		w.check(err)
		for _, q := range all {
			if q.Type() == "pfifo" {
				n = uint64(q.Attrs().Statistics.Basic.Packets)
			}
		}
		return n
	}
	w.until("packets of the earlier connection pass it", func() bool {
		before := sent()
		w.goesOn(early)
		return sent() >= before+9
	})
	w.check(early.Close())
	s := w.stream(lab.UDP, web, false)
	w.fast(s)
	before := sent()
	w.noSlowPackets(s)
	if n := sent() - before; n < 10 {
		t.Errorf("%d packets have passed the queue", n)
	}
	w.unharmed(s)
}

// TestEBPFDetached removes the program from an interface, and then all that is pinned. Check must
// notice it, and Reconcile must attach the program again.
func TestEBPFDetached(t *testing.T) {
	kerneltest.Require(t, kerneltest.TCX)
	w := newWorld(t, Config{Engine: EBPF, Threshold: threshold})
	s := w.stream(lab.TCP, web, false)
	w.fast(s)
	w.check(w.Check(t.Context()))
	l, err := w.links.LinkByName(w.client.NodeLink())
	w.check(err)
	dir := w.pins()
	pin := fmt.Sprintf("%s/interface-%d", dir, l.Attrs().Index)
	before := w.withProgram("forward")
	for n, damage := range []func(){
		func() { // at the egress
			var id tcx.ID
			w.check(w.node.Do(func() error {
				at, err := tcx.QueryPrograms(tcx.QueryOptions{Target: l.Attrs().Index, Attach: ebpf.AttachTCXEgress})
				if err == nil {
					id, _ = at.Programs[0].LinkID()
				}
				return err
			}))
			attached, err := tcx.NewFromID(id)
			w.check(err)
			w.check(attached.Detach())
			w.check(attached.Close())
		},
		func() {
			attached, err := tcx.LoadPinnedLink(pin, nil)
			w.check(err)
			w.check(attached.Detach())
			w.check(attached.Close())
			if len(w.withProgram("forward")) != len(before)-1 {
				t.Fatal("it was not detached")
			}
		},
		func() { w.check(os.RemoveAll(dir)) },
	} {
		damage()
		if err := w.Check(t.Context()); !errors.Is(err, dataplane.ErrDamaged) || !strings.Contains(err.Error(), "BPF program") {
			t.Fatalf("Check: %v", err)
		}
		if n > 0 { // at the egress a program is only while its process runs
			w.verifies("BPF program is not attached")
		}
		w.check2(w.Reconcile(t.Context(), &w.state.Full().Change))
		w.check(w.Check(t.Context()))
		w.verifies("")
		if got := w.withProgram("forward"); !slices.Equal(got, before) {
			t.Errorf("the program is attached to %v, want %v", got, before)
		}
		if _, err := os.Stat(pin); err != nil {
			t.Error(err)
		}
		w.goesOn(s)
		w.fast(s)
		w.noSlowPackets(s)
	}
	w.unharmed(s)
}

// TestEBPFWithoutTCX attaches the program as a filter of tc, as on Linux before 6.6, beside filters of
// others. It must come after these, be adopted, repaired and removed, and leave theirs alone.
func TestEBPFWithoutTCX(t *testing.T) {
	c := Config{Engine: EBPF, Threshold: threshold, withoutTCX: true}
	w := newQuietWorld(t, EBPF)
	link := w.client.NodeLink()
	run := func(command string) {
		t.Helper()
		if said := w.sh(command); said != "" {
			t.Fatalf("%s: %s", command, said)
		}
	}
	filters := func() string { return w.sh("tc filter show dev " + link + " ingress") }
	// other adds a filter that counts packets.
	other := func() (count func() uint64) {
		l, err := w.links.LinkByName(link)
		w.check(err)
		program, count := w.counter()
		w.check(w.links.FilterAdd(&netlink.BpfFilter{Name: "other", Fd: program.FD(), DirectAction: true, FilterAttrs: netlink.FilterAttrs{
			LinkIndex: l.Attrs().Index, Parent: netlink.HANDLE_MIN_INGRESS, Handle: 1, Priority: 10, Protocol: unix.ETH_P_ALL,
		}}))
		return count
	}
	run("tc qdisc add dev eth0 ingress") // which others use in place of clsact
	run("tc qdisc add dev " + link + " clsact")
	in := other()
	others := filters()
	w.start(c)
	s, v6 := w.stream(lab.TCP, web, false), w.stream(lab.UDP, web, true)
	w.fast(s, v6)
	before := in()
	w.noSlowPackets(s)
	w.noSlowPackets(v6)
	if n := in() - before; n < 20 {
		t.Errorf("the other filter has seen %d packets", n)
	}
	if got := filters(); !strings.HasPrefix(got, others) || !strings.Contains(got, "slipstream-fastpath direct-action") {
		t.Fatalf("the filters were\n%s\nand are\n%s", others, got)
	}
	if got := w.sh("tc filter show dev eth0 ingress"); !strings.Contains(got, "slipstream-fastpath") {
		t.Errorf("eth0 has %q", got)
	}
	w.check(w.Check(t.Context()))

	w.stop()
	w.check(w.Close()) // as after a crash
	w.watchSlowPath()
	w.goesOn(s, v6)
	if original, reply := w.slowPackets(); original+reply > 0 {
		t.Errorf("%d and %d packets went the slow path", original, reply)
	}
	var err error
	c.Interfaces, err = iface.Compile(`interface.name.startsWith("veth") && interface.name != "veth3"`)
	w.check(err)
	w.start(c)
	w.goesOn(s, v6)
	w.fast(s, v6) // after they have passed the rules, see TestAdoptedPolicy
	w.check(w.Check(t.Context()))
	if got := w.sh("tc filter show dev veth3 ingress"); !strings.Contains(got, "name guard") || strings.Contains(got, "name forward") {
		t.Errorf("an interface that does not take part any more has %s", got)
	}

	for _, remove := range []string{"tc qdisc del dev " + link + " clsact", "rm " + w.pins() + "/flows", "tc filter del dev " + link + " ingress prio 65000"} {
		run(remove)
		if err := w.Check(t.Context()); !errors.Is(err, dataplane.ErrDamaged) {
			t.Fatalf("Check after %s: %v", remove, err)
		}
		w.check2(w.Reconcile(t.Context(), &w.state.Full().Change))
		w.check(w.Check(t.Context()))
		w.goesOn(s, v6)
		w.fast(s, v6)
		w.noSlowPackets(s)
	}

	in = other()
	w.stop()
	w.check(w.Stop())
	if got := filters(); !strings.Contains(got, "other") || strings.Contains(got, "slipstream") {
		t.Errorf("Stop has left %s", got)
	}
	if got := w.sh("tc qdisc show dev lo"); strings.Contains(got, "clsact") {
		t.Errorf("the probe has left %s", got)
	}
	before = in()
	w.goesOn(s, v6)
	if in() < before+20 {
		t.Error("the other filter sees no packets any more")
	}

	// A filter of another program at our place stays, and the other interfaces take part.
	run("tc filter replace dev eth0 ingress prio 65000 handle 1 bpf direct-action bytecode '1,6 0 0 4294967295,'")
	theirs := w.sh("tc filter show dev eth0 ingress")
	c.Interfaces = nil
	w.start(c)
	w.fast(s, v6)
	w.noSlowPackets(s)
	if n, err := w.Stats(); err != nil || n.Errors == 0 {
		t.Errorf("%+v, %v", n, err)
	}
	w.stop()
	w.check(w.Stop())
	if got := w.sh("tc filter show dev eth0 ingress"); got != theirs {
		t.Errorf("the filters were\n%s\nand are\n%s", theirs, got)
	}
	w.unharmed(s, v6)
}

// TestEBPFTraffic checks that packets that the program forwards are counted beside those of conntrack.
func TestEBPFTraffic(t *testing.T) {
	w := newWorld(t, Config{Engine: EBPF, Threshold: threshold})
	s := w.stream(lab.UDP, web, true)
	w.fast(s)
	count := func() (packets uint64) {
		w.check(w.flows.Translated(t.Context(), func(f *flows.Flow) {
			if f.Source == s.Stats().Source {
				if packets = f.Sent.Packets; !f.Offloaded || f.Received.Bytes == 0 {
					t.Errorf("%+v", f)
				}
			}
		}))
		return packets
	}
	before, sent := count(), s.Stats().Received
	w.noSlowPackets(s)
	if n := count(); before < threshold/2 || n < before+uint64(s.Stats().Received-sent)/2 {
		t.Errorf("%d packets were counted, and later %d", before, n)
	}
	w.unharmed(s)
}

// TestEBPFReplaced leaves the program and the flows behind, and starts without a fast path, which
// removes them.
func TestEBPFReplaced(t *testing.T) {
	w := newWorld(t, Config{Engine: EBPF, Threshold: threshold})
	s := w.stream(lab.TCP, web, false)
	w.fast(s)
	w.stop()
	w.check(w.Close()) // as after a crash
	if _, is := s.flow(); !is {
		t.Error("the flow has ended with the process")
	}
	off, err := New(Config{NetNS: w.node.FD()})
	w.check(err)
	w.check2(off.Reconcile(t.Context(), &desired.Change{}))
	w.check(off.Stop())
	if _, is := s.flow(); is {
		t.Error("it is still offloaded")
	}
	w.watchSlowPath()
	w.goesOn(s)
	// The kernel detaches a program a moment after its pin has been removed.
	w.until("both directions take the slow path", func() bool {
		original, reply := w.slowPackets()
		return original > 0 && reply > 0
	})
	w.unharmed(s)
}
