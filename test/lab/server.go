// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Server answers on one port of a machine, with a line of JSON that says its
// name and what it sees of the client: {"server":"web-1",
// "client":"10.244.1.5:40000","local":"10.244.2.3:8080"}.
//
// On TCP and SCTP it sends the line when a connection begins and then echoes
// what it gets until the client closes. On UDP it answers each datagram with
// one that holds the line and the datagram's content after it; its answers come
// from the address that the datagram was sent to.
type Server struct {
	machine *Machine
	name    string
	addr    netip.AddrPort
	served  atomic.Int64
	running sync.WaitGroup

	mu        sync.Mutex
	closed    bool
	drained   bool
	listeners []*socket
	conns     map[*socket]struct{}
}

// ServeOption changes what Serve does by default.
type ServeOption func(*Server)

// ServerName sets the name that the server gives; by default the machine's.
func ServerName(name string) ServeOption { return func(s *Server) { s.name = name } }

// Serve starts a server on addr. An address of netip.IPv4Unspecified stands for
// all IPv4 addresses of the machine, one of netip.IPv6Unspecified or the zero
// netip.Addr for all addresses of both families. Port 0 chooses a free port;
// see Server.Addr. The server ends with its machine.
func (m *Machine) Serve(p Protocol, addr netip.AddrPort, opts ...ServeOption) (*Server, error) {
	s := &Server{machine: m, name: m.name, addr: addr, conns: map[*socket]struct{}{}}
	for _, o := range opts {
		o(s)
	}
	fail := func(err error) (*Server, error) {
		_ = s.Close()
		return nil, m.wrap(fmt.Errorf("serve %v %v: %w", p, addr, err))
	}
	addrs := []netip.AddrPort{addr}
	if a := addr.Addr(); !a.IsValid() || a == netip.IPv6Unspecified() {
		// Two sockets, not one of both families, so that each sees plain
		// addresses; IPv6 first, so that Server.Addr stands for both.
		addrs = []netip.AddrPort{
			netip.AddrPortFrom(netip.IPv6Unspecified(), addr.Port()),
			netip.AddrPortFrom(netip.IPv4Unspecified(), addr.Port()),
		}
	}
	for i, a := range addrs {
		if i > 0 {
			a = netip.AddrPortFrom(a.Addr(), s.addr.Port())
		}
		bound, err := s.listen(p, a)
		if err != nil {
			return fail(err)
		}
		if i == 0 {
			s.addr = bound
		}
	}
	if err := m.track(s); err != nil {
		return fail(err)
	}
	return s, nil
}

// Addr returns the address and port that the server listens on.
func (s *Server) Addr() netip.AddrPort { return s.addr }

// Name returns the name that the server gives.
func (s *Server) Name() string { return s.name }

// Served returns how many connections (TCP, SCTP) or datagrams (UDP) the server
// has answered.
func (s *Server) Served() int64 { return s.served.Load() }

// Open returns how many connections are open; always 0 on UDP.
func (s *Server) Open() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

// Drain stops to listen, so that new connections are refused; those that are
// open go on. That is what a terminating pod does. A UDP server is closed.
func (s *Server) Drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drained = true
	for _, l := range s.listeners {
		_ = l.Close()
	}
}

// Close stops to listen, closes all connections and waits until all is done.
// Calls after the first do nothing.
func (s *Server) Close() error {
	s.Drain()
	s.mu.Lock()
	s.closed = true
	for c := range s.conns {
		_ = c.Close()
	}
	s.mu.Unlock()
	s.running.Wait()
	s.machine.untrack(s)
	return nil
}

// stopped says whether the server no longer listens.
func (s *Server) stopped() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.drained
}

func (s *Server) listen(p Protocol, addr netip.AddrPort) (netip.AddrPort, error) {
	var l *socket
	err := s.machine.Do(func() (err error) {
		l, err = openSocket(p, addr.Addr().Is6())
		return err
	})
	if err != nil {
		return addr, err
	}
	if err := l.listen(addr); err != nil {
		l.Close()
		return addr, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listeners = append(s.listeners, l)
	s.running.Go(func() {
		if p == UDP {
			s.answerDatagrams(l)
		} else {
			s.acceptLoop(p, l)
		}
	})
	return l.local(), nil
}

func (s *Server) acceptLoop(p Protocol, l *socket) {
	for {
		c, from, err := l.accept()
		if err != nil {
			if errors.Is(err, os.ErrClosed) || s.stopped() {
				return
			}
			if !errors.Is(err, syscall.ECONNABORTED) {
				time.Sleep(5 * time.Millisecond) // out of descriptors, perhaps
			}
			continue
		}
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			c.Close()
			return
		}
		s.conns[c] = struct{}{}
		s.running.Go(func() { s.serveConn(p, c, from) })
		s.mu.Unlock()
	}
}

func (s *Server) serveConn(p Protocol, c *socket, from netip.AddrPort) {
	defer func() {
		s.mu.Lock()
		delete(s.conns, c)
		s.mu.Unlock()
		c.Close()
	}()
	if p == TCP {
		c.keepAlive()
	}
	s.served.Add(1) // before the client can know
	if _, err := c.Write(answer{Server: s.name, Client: from, Local: c.local()}.line()); err != nil {
		s.served.Add(-1)
		return
	}
	buf := make([]byte, bufferSize)
	for {
		n, err := c.Read(buf)
		if err != nil {
			return
		}
		if _, err := c.Write(buf[:n]); err != nil {
			return
		}
	}
}

// answerDatagrams answers until the server stops.
func (s *Server) answerDatagrams(l *socket) {
	port := l.local().Port()
	buf, oob := make([]byte, 65536), make([]byte, 256)
	for {
		n, oobn, from, err := l.receiveFrom(buf, oob)
		if s.stopped() {
			return
		}
		if err != nil {
			time.Sleep(time.Millisecond)
			continue
		}
		local, source := packetInfo(oob[:oobn])
		reply := answer{Server: s.name, Client: addrPort(from), Local: netip.AddrPortFrom(local, port)}.line()
		s.served.Add(1) // before the client can know
		if err := l.sendTo(append(reply, buf[:n]...), source, from); err != nil {
			s.served.Add(-1)
		}
	}
}

// packetInfo returns the address that a datagram was sent to, from its control
// messages, and the control message that sends an answer from there: a wildcard
// socket of a machine with several addresses would take another.
func packetInfo(oob []byte) (local netip.Addr, source []byte) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return netip.Addr{}, nil
	}
	for _, m := range msgs {
		switch {
		case m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_PKTINFO && len(m.Data) >= unix.SizeofInet4Pktinfo:
			// struct in_pktinfo: link, address to answer from, address in the header
			local = netip.AddrFrom4([4]byte(m.Data[8:12]))
			return local, unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: local.As4()})
		case m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_PKTINFO && len(m.Data) >= unix.SizeofInet6Pktinfo:
			local = netip.AddrFrom16([16]byte(m.Data[:16]))
			info := &unix.Inet6Pktinfo{Addr: local.As16()}
			if local.IsLinkLocalUnicast() {
				info.Ifindex = binary.NativeEndian.Uint32(m.Data[16:20])
			}
			return local, unix.PktInfo6(info)
		}
	}
	return netip.Addr{}, nil
}
