// SPDX-License-Identifier: Apache-2.0

package fastpath

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/fastpath/flows"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"golang.org/x/sys/unix"
)

// TestUnusual sends datagrams that need more than forwarding on an offloaded connection: with IP options
// or extension headers, as fragments, and larger than the MTU of the pod's interface.
func TestUnusual(t *testing.T) { engines(t, testUnusual) }

func testUnusual(t *testing.T, engine Engine) {
	for _, ipv6 := range []bool{false, true} {
		t.Run(fmt.Sprintf("ipv6=%t", ipv6), func(t *testing.T) {
			w := newWorld(t, Config{Engine: engine, Threshold: 2, Scope: All})
			listen := func(p *lab.Pod) (c *net.UDPConn) {
				w.check(p.Do(func() (err error) {
					c, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(p.Addr(ipv6), 0)))
					return err
				}))
				t.Cleanup(func() { c.Close() })
				return c
			}
			client, server := listen(w.client), listen(w.web[0])
			send := func(from, to *net.UDPConn, size int, patience time.Duration) error {
				w.check2(from.WriteTo(make([]byte, size), to.LocalAddr()))
				w.check(to.SetReadDeadline(time.Now().Add(patience)))
				got, _, err := to.ReadFrom(make([]byte, 4096))
				if err == nil && got != size {
					t.Fatalf("of %d bytes %d arrived", size, got)
				}
				return err
			}
			pass := func(from, to *net.UDPConn, size int) { t.Helper(); w.check(send(from, to, size, 20*time.Second)) }
			local := client.LocalAddr().(*net.UDPAddr).AddrPort()
			offloaded := func() (is bool) {
				w.check(w.flows.Each(t.Context(), func(f *flows.Flow) { is = is || f.Source == local }))
				return is
			}
			w.until("it is offloaded", func() bool {
				pass(client, server, 10)
				pass(server, client, 10)
				return offloaded()
			})
			slow := func(what string, do func()) {
				t.Helper()
				w.watchSlowPath()
				do()
				if original, _ := w.slowPackets(); original == 0 {
					t.Errorf("%s: no packet took the slow path", what)
				}
			}
			slow("fragments", func() { pass(client, server, 3000) })
			pass(client, server, 1400)
			options := func(v4, v6 string) {
				raw, err := client.SyscallConn()
				w.check(err)
				w.check(raw.Control(func(fd uintptr) {
					if err = unix.SetsockoptString(int(fd), unix.IPPROTO_IP, unix.IP_OPTIONS, v4); ipv6 {
						err = unix.SetsockoptString(int(fd), unix.IPPROTO_IPV6, unix.IPV6_DSTOPTS, v6)
					}
				}))
				w.check(err)
			}
			options("\x01\x01\x01\x00", "\x00\x00\x01\x04\x00\x00\x00\x00") // that say nothing
			slow("options", func() { pass(client, server, 10) })
			options("", "")
			l, err := w.links.LinkByName(w.web[0].NodeLink())
			w.check(err)
			w.check(w.links.LinkSetMTU(l, 1300))
			// The node answers the first one with an ICMP error, after which the client sends fragments.
			w.watchSlowPath()
			w.until("a datagram arrives by the slow path", func() bool {
				err := send(client, server, 1400, time.Second)
				original, _ := w.slowPackets()
				return err == nil && original > 0
			})
			pass(client, server, 1400)
		})
	}
}

// TestUnreachable closes the server's socket of an offloaded connection. The client must be told, by an
// ICMP error about the packet that it has sent.
func TestUnreachable(t *testing.T) { engines(t, testUnreachable) }

func testUnreachable(t *testing.T, engine Engine) {
	w := newWorld(t, Config{Engine: engine, Threshold: 4})
	raw := w.newPod(w.node, "raw", 21)
	w.interfaces(5)
	w.endpoints(web, raw)
	w.apply()
	for _, ipv6 := range []bool{false, true} {
		var server, client *net.UDPConn
		w.check(raw.Do(func() (err error) {
			server, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(portOf(raw.Addr(ipv6))))
			return err
		}))
		w.check(w.client.Do(func() (err error) {
			client, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(frontend(desired.UDP, web, ipv6).AddrPort))
			return err
		}))
		defer client.Close()
		var b [16]byte
		w.until("it is offloaded", func() (is bool) {
			w.check2(client.Write([]byte("?")))
			_, from, err := server.ReadFrom(b[:])
			w.check(err)
			w.check2(server.WriteTo([]byte("!"), from))
			w.check2(client.Read(b[:]))
			local := client.LocalAddr().(*net.UDPAddr).AddrPort()
			w.check(w.flows.Each(t.Context(), func(f *flows.Flow) { is = is || f.Source == local }))
			return is
		})
		w.check(server.Close())
		w.until("the client is told", func() bool {
			_, err := client.Write([]byte("?"))
			if err == nil {
				w.check(client.SetReadDeadline(time.Now().Add(time.Second)))
				_, err = client.Read(b[:])
			}
			return errors.Is(err, unix.ECONNREFUSED)
		})
	}
}
