// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"encoding/json"
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

// Server answers on one port of a machine, with a line of JSON: {"server":"web-1",
// "client":"10.244.1.5:40000","local":"10.244.2.3:8080"}. On TCP and SCTP it sends the line
// when a connection begins and then echoes until the client closes. On UDP it answers each
// datagram, from the address that it was sent to, with the line and the datagram's content.
type Server struct {
	machine *Machine
	addr    netip.AddrPort
	served  atomic.Int64
	running sync.WaitGroup

	mu        sync.Mutex
	closed    bool
	drained   bool
	listeners []*socket
	conns     map[*socket]struct{}
}

// answer is the line of JSON that a server sends first.
type answer struct {
	Server string         `json:"server"`
	Client netip.AddrPort `json:"client"` // as the server sees it
	Local  netip.AddrPort `json:"local"`  // the server's own, after any DNAT
}

func (a answer) line() []byte {
	b, _ := json.Marshal(a) // plain data, cannot fail
	return append(b, '\n')
}

func parseAnswer(line []byte) (answer, error) {
	var a answer
	err := json.Unmarshal(line, &a)
	if err != nil {
		err = fmt.Errorf("answer is not a lab server's: %w", err)
	}
	return a, err
}

// Serve starts a server on addr. 0.0.0.0 stands for all IPv4 addresses of the machine, :: or
// the zero netip.Addr for all addresses. The server ends with its machine.
func (m *Machine) Serve(p Protocol, addr netip.AddrPort) (*Server, error) {
	s := &Server{machine: m, addr: addr, conns: map[*socket]struct{}{}}
	addrs := []netip.AddrPort{addr}
	if a := addr.Addr(); !a.IsValid() || a == netip.IPv6Unspecified() {
		// Two sockets, not one of both families, so that each sees plain addresses.
		addrs = []netip.AddrPort{
			netip.AddrPortFrom(netip.IPv6Unspecified(), addr.Port()),
			netip.AddrPortFrom(netip.IPv4Unspecified(), addr.Port()),
		}
	}
	err := m.track(s, false)
	for _, a := range addrs {
		if err == nil {
			err = s.listen(p, a)
		}
	}
	if err != nil {
		_ = s.Close()
		return nil, m.wrap(fmt.Errorf("serve %v %v: %w", p, addr, err))
	}
	return s, nil
}

// Addr returns the address and port that the server was given.
func (s *Server) Addr() netip.AddrPort { return s.addr }

// Served returns how many connections (TCP, SCTP) or datagrams (UDP) the server
// has answered.
func (s *Server) Served() int64 { return s.served.Load() }

// Drain stops to listen, as a terminating pod does: new connections are refused, open ones
// continue. A UDP server is closed.
func (s *Server) Drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drained = true
	for _, l := range s.listeners {
		_ = l.Close()
	}
}

// Close stops to listen and closes all connections. Calls after the first do nothing.
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

func (s *Server) listen(p Protocol, addr netip.AddrPort) error {
	l, err := In(s.machine.Namespace, func() (*socket, error) { return openSocket(p, addr.Addr().Is6()) })
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listeners = append(s.listeners, l)
	if err := l.listen(addr); err != nil {
		return err
	}
	if s.drained {
		return ErrClosed
	}
	s.running.Go(func() {
		if p == UDP {
			s.answerDatagrams(l)
		} else {
			s.acceptLoop(l)
		}
	})
	return nil
}

func (s *Server) acceptLoop(l *socket) {
	for {
		conn, from, err := l.Accept(context.Background(), 0)
		if err != nil {
			if errors.Is(err, os.ErrClosed) || s.stopped() {
				return
			}
			if !errors.Is(err, syscall.ECONNABORTED) {
				time.Sleep(5 * time.Millisecond) // out of descriptors, perhaps
			}
			continue
		}
		c := &socket{Conn: conn, proto: l.proto}
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			c.Close()
			return
		}
		s.conns[c] = struct{}{}
		s.running.Go(func() { s.serveConn(c, addrPort(from)) })
		s.mu.Unlock()
	}
}

func (s *Server) serveConn(c *socket, from netip.AddrPort) {
	defer func() {
		s.mu.Lock()
		delete(s.conns, c)
		s.mu.Unlock()
		c.Close()
	}()
	s.served.Add(1) // before the client can know
	if _, err := c.Write(answer{Server: s.machine.name, Client: from, Local: c.local()}.line()); err != nil {
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
	buf, oob := make([]byte, 65536), make([]byte, 256)
	for {
		n, oobn, _, from, err := l.Recvmsg(context.Background(), buf, oob, 0)
		if s.stopped() {
			return
		}
		if err != nil {
			time.Sleep(time.Millisecond)
			continue
		}
		local := answerFrom(oob[:oobn])
		reply := answer{Server: s.machine.name, Client: addrPort(from), Local: netip.AddrPortFrom(local, s.addr.Port())}.line()
		s.served.Add(1) // before the client can know
		if _, err := l.Sendmsg(context.Background(), append(reply, buf[:n]...), oob[:oobn], from, 0); err != nil {
			s.served.Add(-1)
		}
	}
}

// answerFrom returns the address that a datagram was sent to, from its control message,
// and makes that the one that sends an answer from there: a wildcard socket of a machine
// with several addresses would take another.
func answerFrom(oob []byte) (local netip.Addr) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil || len(msgs) != 1 {
		return netip.Addr{}
	}
	data := msgs[0].Data // in oob
	if msgs[0].Header.Level == unix.IPPROTO_IP {
		// struct in_pktinfo: link, address to answer from, address in the header
		clear(data[:4])
		copy(data[4:8], data[8:12])
		return netip.AddrFrom4([4]byte(data[4:8]))
	}
	// struct in6_pktinfo: address, link
	local = netip.AddrFrom16([16]byte(data[:16]))
	if !local.IsLinkLocalUnicast() {
		clear(data[16:20])
	}
	return local
}
