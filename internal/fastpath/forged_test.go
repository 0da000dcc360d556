// SPDX-License-Identifier: Apache-2.0

package fastpath

import (
	"encoding/binary"
	"net/netip"
	"strings"
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/fastpath/iface"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"
)

// Flags of TCP.
const (
	fin = 0x01
	syn = 0x02
	rst = 0x04
	ack = 0x10
)

// forge sends a segment from a pod that has other addresses.
func (w *world) forge(pod *lab.Pod, from, to netip.AddrPort, flags byte) {
	w.t.Helper()
	w.forgeAs(pod, from, to, flags, "")
}

// forgeAs is forge with headers of IP that are unusual.
func (w *world) forgeAs(pod *lab.Pod, from, to netip.AddrPort, flags byte, unusual string) {
	w.t.Helper()
	segment := make([]byte, 20)
	binary.BigEndian.PutUint16(segment, from.Port())
	binary.BigEndian.PutUint16(segment[2:], to.Port())
	binary.BigEndian.PutUint32(segment[4:], 77) // out of any window, most likely
	segment[12], segment[13] = 5<<4, flags
	pseudo := append(from.Addr().AsSlice(), to.Addr().AsSlice()...)
	pseudo = append(append(pseudo, 0, unix.IPPROTO_TCP, 0, byte(len(segment))), segment...)
	sum := uint32(0)
	for ; len(pseudo) > 0; pseudo = pseudo[2:] {
		sum += uint32(binary.BigEndian.Uint16(pseudo))
	}
	binary.BigEndian.PutUint16(segment[16:], ^uint16(sum%0xffff))
	v6 := from.Addr().Is6()
	hops, next, options := 64, byte(unix.IPPROTO_TCP), []byte(nil)
	parts := [][]byte{segment}
	switch unusual {
	case "TTL":
		hops = 1
	case "options":
		options = []byte{1, 1, 1, 0} // IPv4: three no-operations, end
		if v6 {
			next, options = unix.IPPROTO_DSTOPTS, []byte{next, 0, 1, 4, 0, 0, 0, 0} // padding
		}
	case "fragments":
		parts = [][]byte{segment[:8], segment[8:]} // the flags are in the second
	}
	family, address := unix.AF_INET, unix.Sockaddr(nil)
	if v6 {
		family, address = unix.AF_INET6, &unix.SockaddrInet6{Addr: to.Addr().As16()}
	} else {
		address = &unix.SockaddrInet4{Addr: to.Addr().As4()}
	}
	w.check(pod.Do(func() error {
		fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		for i, part := range parts {
			more := len(parts) - 1 - i
			var packet []byte
			if v6 {
				if len(parts) > 1 {
					next, options = unix.IPPROTO_FRAGMENT, []byte{unix.IPPROTO_TCP, 0, 0, byte(8*i | more), 0, 0, 0, 7}
				}
				packet = append([]byte{0x60, 0, 0, 0, 0, byte(len(options) + len(part)), next, byte(hops)}, from.Addr().AsSlice()...)
				packet = append(append(append(packet, to.Addr().AsSlice()...), options...), part...)
			} else {
				header := ipv4.Header{
					Version: 4, Len: ipv4.HeaderLen + len(options), TotalLen: ipv4.HeaderLen + len(options) + len(part), TTL: hops, Protocol: unix.IPPROTO_TCP,
					ID: 7, Flags: ipv4.HeaderFlags(more), FragOff: i, Src: from.Addr().AsSlice(), Dst: to.Addr().AsSlice(), Options: options,
				}
				if packet, err = header.Marshal(); err != nil { // the kernel adds the checksum
					return err
				}
				packet = append(packet, part...)
			}
			if err := unix.Sendto(fd, packet, 0, address); err != nil {
				return err
			}
		}
		return nil
	}))
}

// forgeDatagram sends a datagram without a checksum from a pod that has other addresses.
func (w *world) forgeDatagram(pod *lab.Pod, from, to netip.AddrPort) {
	w.t.Helper()
	datagram := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, from.Port()), to.Port())
	datagram = append(datagram, 0, 12, 0, 0, 'f', 'a', 'k', 'e')
	header := ipv4.Header{Version: 4, Len: ipv4.HeaderLen, TotalLen: ipv4.HeaderLen + len(datagram), TTL: 64, Protocol: unix.IPPROTO_UDP, Src: from.Addr().AsSlice(), Dst: to.Addr().AsSlice()}
	packet, err := header.Marshal()
	w.check(err)
	w.check(pod.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Sendto(fd, append(packet, datagram...), 0, &unix.SockaddrInet4{Addr: to.Addr().As4()})
	}))
}

// TestEBPFForgedUnusual sends forged ends that the program cannot forward, and such from an interface that takes no part.
func TestEBPFForgedUnusual(t *testing.T) {
	interfaces, err := iface.Compile(`interface.up && interface.type == "veth" && interface.mtu != 1400`)
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, Config{Engine: EBPF, Threshold: threshold, Interfaces: interfaces})
	outside := w.newPod(w.node, "outside", 14)
	if said := w.sh("ip link set mtu 1400 dev " + outside.NodeLink()); said != "" {
		t.Fatal(said)
	}
	w.until("its interface takes no part", func() bool { s, err := w.Stats(); w.check(err); return s.Interfaces == 4 })
	for _, v6 := range []bool{false, true} {
		for name, flags := range map[string]byte{"RST": rst, "FIN": fin | ack} {
			s := w.stream(lab.TCP, web, v6)
			w.fast(s)
			w.goesOn(s)
			for _, pod := range []*lab.Pod{w.web[1], outside} {
				for _, unusual := range []string{"", "TTL", "options", "fragments"} {
					for _, reply := range []bool{false, true} {
						from, to := s.Stats().Source, s.to.AddrPort
						if reply {
							from, to = portOf(w.web[0].Addr(v6)), from
						}
						w.forgeAs(pod, from, to, flags, unusual)
						w.goesOn(s)
						if line := w.entryLine(s); !strings.Contains(line, "ESTABLISHED") {
							t.Fatalf("after a forged %s from %s, %q, reply %t: %s", name, pod.Name(), unusual, reply, line)
						}
					}
				}
			}
			w.unharmed(s)
			w.check(s.Close())
			w.until("conntrack has seen the end", func() bool { return !strings.Contains(w.entryLine(s), "ESTABLISHED") })
		}
	}
}

// TestEBPFForgedEnd has another pod send one RST or FIN with the addresses of an offloaded connection. On the
// slow path conntrack finds it out of the window. Here, too, the connection must stay established.
func TestEBPFForgedEnd(t *testing.T) {
	for name, flags := range map[string]byte{"RST": rst, "FIN": fin | ack} {
		for _, fast := range []bool{false, true} {
			w := newQuietWorld(t, EBPF)
			if fast {
				w.start(Config{Engine: EBPF, Threshold: threshold})
			}
			s := w.stream(lab.TCP, web, false)
			w.goesOn(s, s, s)
			if fast {
				w.fast(s)
				w.goesOn(s)
			}
			w.forge(w.web[1], s.Stats().Source, s.to.AddrPort, flags)
			w.goesOn(s, s, s)
			if line := w.entryLine(s); !strings.Contains(line, "ESTABLISHED") {
				t.Errorf("fast path %t, after a forged %s: %s", fast, name, line)
			}
			w.unharmed(s)
		}
	}
}

// TestEBPFForgedBegin has another pod send SYNs with the addresses of an offloaded connection, which must
// stay offloaded.
func TestEBPFForgedBegin(t *testing.T) {
	w := newWorld(t, Config{Engine: EBPF, Threshold: threshold})
	s := w.stream(lab.TCP, web, false)
	w.fast(s)
	before, err := w.Stats()
	w.check(err)
	for range 5 {
		w.forge(w.web[1], s.Stats().Source, s.to.AddrPort, syn)
		w.goesOn(s)
		if _, is := s.flow(); !is {
			t.Error("it is not offloaded any more")
		}
		w.fast(s)
	}
	after, err := w.Stats()
	w.check(err)
	if n := after.Offloaded - before.Offloaded; n > 0 {
		t.Errorf("it was offloaded %d times more", n)
	}
	w.unharmed(s)
}
