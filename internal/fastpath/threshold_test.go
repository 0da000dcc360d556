// SPDX-License-Identifier: Apache-2.0

package fastpath

import (
	"bufio"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
)

// TestThreshold sends packets one by one, some of them answers. The one that makes
// them more than the threshold takes the slow path and has the connection
// offloaded; none before does.
func TestThreshold(t *testing.T) {
	for _, threshold := range []int{1, 2, 7, 20} {
		for _, ipv6 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d/ipv6=%t", threshold, ipv6), func(t *testing.T) {
				w := newWorld(t, Config{Threshold: uint32(threshold)})
				// Every third packet is from the server, which is our own.
				raw := w.newPod(w.node, "raw", 21)
				w.interfaces(5)
				w.endpoints(web, raw)
				w.apply()
				listen := func(p *lab.Pod, port uint16) (c net.PacketConn) {
					w.check(p.Do(func() (err error) {
						c, err = net.ListenPacket("udp", netip.AddrPortFrom(p.Addr(ipv6), port).String())
						return err
					}))
					t.Cleanup(func() { c.Close() })
					return c
				}
				server, client := listen(raw, targets), listen(w.client, 0)
				to := net.UDPAddrFromAddrPort(frontend(desired.UDP, web, ipv6).AddrPort)
				pass := func(from net.PacketConn, to net.Addr, at net.PacketConn) net.Addr {
					t.Helper()
					w.check2(from.WriteTo([]byte("x"), to))
					w.check(at.SetReadDeadline(time.Now().Add(time.Minute)))
					var b [16]byte
					_, sender, err := at.ReadFrom(b[:])
					w.check(err)
					return sender
				}
				offloaded := func() int {
					t.Helper()
					all, err := w.flows.List(t.Context())
					w.check(err)
					return len(all)
				}
				var peer net.Addr
				for n := 1; n <= threshold+1; n++ {
					if offloaded() != 0 {
						t.Fatalf("it is offloaded after %d packets", n-1)
					}
					if n%3 == 0 {
						pass(server, peer, client)
					} else {
						peer = pass(client, to, server)
					}
				}
				if offloaded() != 1 {
					t.Fatalf("it is not offloaded after %d packets:\n%s", threshold+1, w.sh("conntrack -L"))
				}
				all, err := w.flows.List(t.Context())
				w.check(err)
				if got := all[0].Sent.Packets + all[0].Received.Packets; got != uint64(threshold+1) {
					t.Errorf("conntrack has counted %d packets, want %d", got, threshold+1)
				}
			})
		}
	}
}

// TestTCPThreshold sends one message after the other. At any time the connection must be
// offloaded exactly if it is established and conntrack has counted more packets than the
// threshold.
func TestTCPThreshold(t *testing.T) {
	for threshold := 19; threshold < 22; threshold++ { // for each step is of two packets or three
		t.Run(strconv.Itoa(threshold), func(t *testing.T) { testTCPThreshold(t, threshold) })
	}
}

func testTCPThreshold(t *testing.T, threshold int) {
	w := newWorld(t, Config{Threshold: uint32(threshold)})
	to := frontend(desired.TCP, web, false)
	var client net.Conn
	w.check(w.client.Do(func() (err error) {
		client, err = net.Dial("tcp", to.AddrPort.String())
		return err
	}))
	defer client.Close()
	w.check(client.SetDeadline(time.Now().Add(time.Minute)))
	answers := bufio.NewReader(client)
	w.check2(answers.ReadString('\n')) // the server's name
	find := func() (packets int, offloaded bool) {
		t.Helper()
		return entryOf(t, w.sh(fmt.Sprintf("conntrack -L -p tcp --sport %d 2>/dev/null", client.LocalAddr().(*net.TCPAddr).Port)))
	}
	seen := map[bool]bool{}
	for packets := 0; packets <= threshold+5; {
		w.check2(client.Write([]byte("x\n")))
		w.check2(answers.ReadString('\n'))
		// Only what is the same twice counts: there may be an acknowledgement
		// under way while an entry is read.
		var offloaded bool
		for {
			packets, offloaded = find()
			if again, still := find(); again == packets && still == offloaded {
				break
			}
		}
		seen[offloaded] = true
		if offloaded != (packets > threshold) {
			t.Fatalf("after %d packets: offloaded %t", packets, offloaded)
		}
	}
	if !seen[false] || !seen[true] {
		t.Errorf("only one of both has been seen: %v", seen)
	}
}

// entryOf reads an entry as the command conntrack shows it.
func entryOf(t *testing.T, line string) (packets int, offloaded bool) {
	t.Helper()
	for _, field := range strings.Fields(line) {
		if n, ok := strings.CutPrefix(field, "packets="); ok {
			more, err := strconv.Atoi(n)
			if err != nil {
				t.Fatalf("entry %q: %v", line, err)
			}
			packets += more
		}
	}
	if packets == 0 {
		t.Fatalf("entry %q", line)
	}
	return packets, strings.Contains(line, "[OFFLOAD]")
}
