// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"fmt"
	"golang.org/x/sys/unix"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	corev1 "k8s.io/api/core/v1"
)

func at(address string, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(address), port)
}

// frontends are the addresses of the Service.
var frontends = []netip.AddrPort{
	at("10.96.0.1", webPort), at("fd00:96::1", webPort), at("203.0.113.1", webPort), at("2001:db8::1", webPort),
	at("192.168.100.11", nodePort), at("fd00:100::11", nodePort),
}

// serve starts with a Service.
func serve(t *testing.T, endpoints int, change func(*corev1.Service)) *world {
	w := newWorld(t)
	w.fill(endpoints, change)
	w.reconcile()
	return w
}

// fill makes the Service, and gives the node addresses.
func (w *world) fill(endpoints int, change func(*corev1.Service)) {
	w.state.SetNodeAddresses([]netip.Addr{netip.MustParseAddr("192.168.100.11"), netip.MustParseAddr("fd00:100::11"), netip.MustParseAddr("127.0.0.1")})
	s := service()
	if change != nil {
		change(s)
	}
	w.state.SetService(s)
	w.endpoints(endpoints)
}

// direct tries each frontend from a machine.
func (w *world) direct(from *lab.Machine, want bool) {
	w.t.Helper()
	for _, f := range frontends {
		w.connects(from, f, want)
	}
}

func (w *world) connects(from *lab.Machine, to netip.AddrPort, want bool) {
	w.t.Helper()
	if _, err := from.Connect(lab.TCP, to); (err == nil) != want {
		w.t.Errorf("%s to %s: %v, should connect: %v", from.Name(), to, err, want)
	}
}

// TestConnect connects from a pod and from the node to each kind of address.
func TestConnect(t *testing.T) {
	w := serve(t, ports, nil)
	w.direct(&w.client.Machine, true)
	w.direct(&w.node.Machine, true)
	for _, f := range []netip.AddrPort{at("10.96.0.1", 81), at("10.96.0.1", nodePort), at("10.96.0.2", webPort)} {
		w.connects(&w.client.Machine, f, false)
	}
	if s, err := w.Stats(); err != nil || s.Connections != 12 || s.Namespaces != 2 || !s.Attached {
		t.Errorf("%+v (%v), want 12 connections", s, err)
	}
}

// TestSpread asks that each endpoint gets its share, and in turns where the Service says so.
func TestSpread(t *testing.T) {
	w := serve(t, ports, nil)
	for _, scheduler := range []string{"", "rr"} {
		s := service()
		s.Annotations = map[string]string{"slipstream.io/scheduler": scheduler}
		w.state.SetService(s)
		w.apply()
		const each = 100
		hits := map[uint16]int{}
		for range ports * each {
			reply, err := w.client.Connect(lab.TCP, frontends[0])
			w.check(err)
			hits[reply.Local.Port()]++
		}
		chi := 0.0
		for port := range ports {
			d := float64(hits[uint16(firstPort+port)] - each)
			chi += d * d / each
		}
		limit := 40.522 // p = 1e-6 with 7 degrees of freedom
		if scheduler == "rr" {
			limit = 0
		}
		if chi > limit {
			t.Errorf("scheduler %q: chi-squared %.1f is above %.1f; hits by port: %v", scheduler, chi, limit, hits)
		}
	}
}

// TestGetpeername asks for the addresses of connections: the client sees the Service, or what it has
// connected to otherwise.
func TestGetpeername(t *testing.T) {
	w := serve(t, 1, nil)
	for _, f := range append(frontends[:6:6], at("10.244.1.3", firstPort)) {
		c, err := w.client.DialContext(t.Context(), "tcp", f.String())
		w.check(err)
		if peer := peerOf(t, c); peer != f {
			t.Errorf("the peer of a connection to %s is %s", f, peer)
		}
		w.check(c.Close())
	}
}

// peerOf asks the kernel for the address of a connection's peer.
func peerOf(t *testing.T, c net.Conn) netip.AddrPort {
	t.Helper()
	raw, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var peer unix.Sockaddr
	if failed := raw.Control(func(fd uintptr) { peer, err = unix.Getpeername(int(fd)) }); failed != nil || err != nil {
		t.Fatal(failed, err)
	}
	switch a := peer.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port))
	}
	t.Fatalf("%T", peer)
	return netip.AddrPort{}
}

// TestReused connects one socket after the other to a Service, to an endpoint, and to the IPv4-mapped address of
// a Service.
func TestReused(t *testing.T) {
	w := serve(t, 1, nil)
	w.check(w.client.Do(func() error {
		s, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(s)
		for _, f := range []string{"fd00:96::1:80", "fd00:244:1::3:8000", "::ffff:10.96.0.1:80"} {
			at := strings.LastIndexByte(f, ':')
			port, _ := strconv.Atoi(f[at+1:])
			want := &unix.SockaddrInet6{Addr: netip.MustParseAddr(f[:at]).As16(), Port: port}
			if err := unix.Connect(s, want); err != nil {
				return fmt.Errorf("%s: %w", f, err)
			}
			got, err := unix.Getpeername(s)
			if err != nil {
				return err
			}
			if g := got.(*unix.SockaddrInet6); g.Addr != want.Addr || g.Port != want.Port {
				t.Errorf("the peer of %s is %v, port %d", f, netip.AddrFrom16(g.Addr), g.Port)
			}
			raw := unix.RawSockaddrAny{Addr: unix.RawSockaddr{Family: unix.AF_UNSPEC}} // disconnects
			if _, _, e := unix.Syscall(unix.SYS_CONNECT, uintptr(s), uintptr(unsafe.Pointer(&raw)), unsafe.Sizeof(raw)); e != 0 {
				return e
			}
		}
		return nil
	}))
}
