// SPDX-License-Identifier: Apache-2.0

package fastpath

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"github.com/vishvananda/netlink"
)

// These tests check the package's documentation of the kernel's behaviour.

// TestFactDeviceTakenOut takes a device out of the flowtable and puts it back, by
// the command nft. Its flows stay: what comes in there takes the slow path
// meanwhile, the other direction does not, and no rule can offload it again.
func TestFactDeviceTakenOut(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTBinary)
	w := newWorld(t, Config{Threshold: threshold})
	s := w.stream(lab.TCP, web, false)
	w.fast(s)
	w.stop()
	const device = " flowtable inet " + TableName + " flows { hook ingress priority 0; devices = { veth1 }; }"
	before := w.offloaded()
	w.nft("delete" + device)
	w.watchSlowPath()
	w.goesOn(s)
	if original, reply := w.slowPackets(); original < 5 || reply > 0 {
		t.Errorf("%d and %d packets went the slow path", original, reply)
	}
	if _, is := s.flow(); !is || w.offloaded() != before {
		t.Errorf("offloaded: %t, and %d times since", is, w.offloaded()-before)
	}
	w.nft("add" + device)
	w.noSlowPackets(s)
	w.unharmed(s)
}

// TestFactRouteChange changes a route that no flow uses. The flows of the family, IPv4, end at
// their next packet, which also offloads the connection again.
func TestFactRouteChange(t *testing.T) {
	w := newWorld(t, Config{Threshold: threshold})
	s := w.stream(lab.TCP, web, false)
	w.fast(s)
	before := w.offloaded()
	_, dst, err := net.ParseCIDR("198.51.100.0/24")
	w.check(err)
	link, err := w.links.LinkByName("eth0")
	w.check(err)
	w.check(w.links.RouteAdd(&netlink.Route{Dst: dst, LinkIndex: link.Attrs().Index}))
	w.until("the flow is a new one", func() bool { return w.offloaded() > before })
	w.goesOn(s)
	w.unharmed(s)
}

// TestFactEntryDeleted deletes the conntrack entry of an offloaded connection.
func TestFactEntryDeleted(t *testing.T) { engines(t, testFactEntryDeleted) }

func testFactEntryDeleted(t *testing.T, engine Engine) {
	w := newWorld(t, Config{Engine: engine, Threshold: threshold})
	s := w.stream(lab.UDP, web, false)
	w.fast(s)
	before := w.offloaded()
	if said := w.sh(fmt.Sprintf("conntrack -D -p udp --sport %d 2>&1", s.Stats().Source.Port())); strings.Contains(said, "[OFFLOAD]") != (engine == Flowtable) || !strings.Contains(said, "1 flow entries have been deleted") {
		t.Fatal(said)
	}
	w.until("the connection is a new one", func() bool { return w.offloaded() > before })
	if packets, _ := w.entry(s); packets < threshold {
		t.Errorf("it was offloaded again after %d packets", packets)
	}
	w.goesOn(s)
}

// TestFactAccounting uses a connection that began before conntrack counted. It has no counters,
// and is never offloaded; later ones are.
func TestFactAccounting(t *testing.T) { engines(t, testFactAccounting) }

func testFactAccounting(t *testing.T, engine Engine) {
	w := newQuietWorld(t, engine)
	w.check(w.node.SetSysctl("netfilter/nf_conntrack_acct", "0"))
	old := w.stream(lab.TCP, web, false)
	w.goesOn(old)
	w.start(Config{Engine: engine, Threshold: threshold})
	for range 5 {
		w.goesOn(old)
	}
	if _, is := old.flow(); is {
		t.Error("a connection without counters is offloaded")
	}
	if got, err := w.node.Sysctl("netfilter/nf_conntrack_acct"); err != nil || got != "1" {
		t.Errorf("nf_conntrack_acct is %s, %v", got, err)
	}
	w.fast(w.stream(lab.TCP, web, false))
}

// TestFactOneWay uses a client without replies. Its flow is offloaded like others.
func TestFactOneWay(t *testing.T) {
	w := newWorld(t, Config{Threshold: threshold})
	deaf := w.newPod(w.node, "deaf", 21)
	w.interfaces(5)
	w.endpoints(web, deaf)
	w.apply()
	var server, client net.PacketConn
	w.check(deaf.Do(func() (err error) {
		server, err = net.ListenPacket("udp", netip.AddrPortFrom(deaf.Addr(false), targets).String())
		return err
	}))
	defer server.Close()
	w.check(w.client.Do(func() (err error) {
		client, err = net.ListenPacket("udp", netip.AddrPortFrom(w.client.Addr(false), 0).String())
		return err
	}))
	defer client.Close()
	to := net.UDPAddrFromAddrPort(frontend(desired.UDP, web, false).AddrPort)
	for n := 1; n <= threshold+20; n++ {
		w.check2(client.WriteTo([]byte("x"), to))
		w.check(server.SetReadDeadline(time.Now().Add(time.Minute)))
		var b [16]byte
		_, _, err := server.ReadFrom(b[:])
		w.check(err)
		all, err := w.flows.List(t.Context())
		w.check(err)
		if is := len(all) == 1; is != (n > threshold) {
			t.Fatalf("after %d packets: offloaded %t", n, is)
		}
	}
}

// TestFactEntriesLive lets the entry of an offloaded connection nearly expire. Some kernels
// then give it another day; because of the others there is Config.Refresh.
func TestFactEntriesLive(t *testing.T) {
	w := newWorld(t, Config{Threshold: threshold, Refresh: -1})
	s := w.stream(lab.UDP, web, false)
	w.fast(s)
	before := w.offloaded()
	w.expire(s, 3)
	time.Sleep(5 * time.Second)
	if n := w.offloaded() - before; n == 0 {
		t.Log("this kernel keeps the entries of offloaded connections alive")
	} else {
		t.Log("THIS KERNEL LETS THE ENTRIES OF OFFLOADED CONNECTIONS EXPIRE")
	}
	w.goesOn(s) // UDP begins anew, with the same Service
	if n := s.Stats(); n.Failed > 1 {
		t.Errorf("%+v", n)
	}
}

// TestFactRestOfTheDay silences a connection that has been offloaded for a part of a day. Its
// entry only has the rest of that day; another packet on the slow path would give it another
// day. The rest is more than half a day, because some kernels (6.1) give any less another day from time
// to time, while the connection is offloaded.
func TestFactRestOfTheDay(t *testing.T) {
	const rest = 50_000 // seconds
	for _, refreshed := range []bool{false, true} {
		t.Run(fmt.Sprintf("refreshed=%t", refreshed), func(t *testing.T) {
			w := newWorld(t, Config{Threshold: 3, Refresh: -1})
			s := w.streamFrom(w.client, lab.TCP, web, false, 200*time.Millisecond)
			w.fast(s)
			w.expire(s, rest)
			if refreshed {
				w.check(w.Flush(w.t.Context(), Flush{All: true}))
			}
			before := s.Stats().Received
			w.until("it goes on", func() bool { return s.Stats().Received > before })
			w.fast(s)
			w.check(w.node.SetSysctl("netfilter/nf_flowtable_tcp_timeout", "3"))
			before = s.Stats().Received
			w.until("it goes on", func() bool { return s.Stats().Received > before+1 })
			// It falls silent: no packet gets to the node any more.
			w.check2(w.client.Run(t.Context(), "ip", "route", "add", "blackhole", s.to.Addr().String()))
			w.check2(w.web[0].Run(t.Context(), "ip", "route", "add", "blackhole", w.client.Addr(false).String()))
			w.until("the flow is idle", func() bool { _, is := s.flow(); return !is })
			if left := w.timeout(s); (left > rest) != refreshed || left < rest-100 {
				t.Errorf("the entry stays for %d s", left)
			}
		})
	}
}
