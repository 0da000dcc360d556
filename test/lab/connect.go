// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// DefaultTimeout is the option Timeout where nothing else is said. TCP repeats a lost
// SYN after one second, so a lost one shows as a timeout.
const DefaultTimeout = time.Second

// Reply is what a client learns from one exchange.
type Reply struct {
	Server string         // the name that the server gives
	Seen   netip.AddrPort // the client, as the server sees it
	Local  netip.AddrPort // the server's own address and port, after any DNAT
	Source netip.AddrPort // the client's own address and port, before any SNAT
	Took   time.Duration  // from connect to answer
}

type connectOptions struct {
	timeout time.Duration
	source  netip.AddrPort
}

// ConnectOption changes what Connect, Stream and Load do by default.
type ConnectOption func(*connectOptions)

// answerTimeout is the minimum timeout of the answer on an established connection. Only
// the kernel takes part in a handshake. An answer also needs the server's goroutine, which
// may wait for a second on a busy machine.
const answerTimeout = 3 * time.Second

// Timeout bounds a handshake, or (with a tenth more) the exchange of a datagram. The
// first answer on an established connection may take three seconds.
func Timeout(d time.Duration) ConnectOption { return func(o *connectOptions) { o.timeout = d } }

// Source sets the client's own address and port. Port 0 chooses a free one; the
// zero or an unspecified address chooses as the routes say.
func Source(a netip.AddrPort) ConnectOption { return func(o *connectOptions) { o.source = a } }

func newConnectOptions(opts []ConnectOption) connectOptions {
	o := connectOptions{timeout: DefaultTimeout}
	for _, opt := range opts {
		opt(&o)
	}
	return o
}

// Connect makes one short connection, or exchanges one datagram, with a lab
// server. It waits for the server's answer and ends a connection with a reset.
// Errors are of type *TrafficError; see ErrRefused, ErrTimeout and Outcome.
// ICMP errors other than port unreachable are returned as their error numbers
// (EHOSTUNREACH), a datagram dropped by the machine's own rules as EPERM.
func (m *Machine) Connect(p Protocol, dest netip.AddrPort, opts ...ConnectOption) (Reply, error) {
	return m.exchange(p, dest, newConnectOptions(opts))
}

func (m *Machine) exchange(p Protocol, dest netip.AddrPort, o connectOptions) (Reply, error) {
	c, err := m.dial(p, dest, o)
	if err != nil {
		return Reply{}, err
	}
	defer c.Close()
	c.abortOnClose()
	return c.reply, nil
}

// client is a connection on which the first answer was received.
type client struct {
	*socket
	lines lineReader // TCP and SCTP: what follows the first answer
	reply Reply
}

// dial connects and waits for the first answer.
func (m *Machine) dial(p Protocol, dest netip.AddrPort, o connectOptions) (*client, error) {
	begin := time.Now()
	deadline := begin.Add(o.timeout)
	fail := func(op string, err error) (*client, error) {
		return nil, &TrafficError{Protocol: p, Dest: dest, Op: op, Err: err}
	}
	s, err := m.clientSocket(p, dest)
	if err != nil {
		return fail("open", err)
	}
	c := &client{socket: s}
	c.lines.r = bufio.NewReader(s)
	if err := m.bindSource(s, p, dest, o.source); err != nil {
		s.Close()
		return fail("bind", err)
	}
	if err := s.connect(dest, deadline); err != nil {
		s.Close()
		return fail("connect", err)
	}
	c.reply.Source = s.local()
	var a answer
	if p == UDP {
		if err := s.send([]byte("hello\n")); err != nil {
			s.Close()
			return fail("send", err)
		}
		a, _, err = c.receive(o.timeout)
	} else if err = s.file.SetDeadline(time.Now().Add(max(o.timeout, answerTimeout))); err == nil {
		var line []byte
		if _, line, err = c.receive(o.timeout); err == nil {
			a, err = parseAnswer(line)
		}
	}
	if err != nil {
		s.abortOnClose()
		s.Close()
		return fail("receive", err)
	}
	c.reply.Server, c.reply.Seen, c.reply.Local = a.Server, a.Client, a.Local
	c.reply.Took = time.Since(begin)
	return c, nil
}

// clientSocket opens a socket in the machine's namespace.
func (m *Machine) clientSocket(p Protocol, dest netip.AddrPort) (s *socket, err error) {
	if !dest.IsValid() {
		return nil, errors.New("destination is not valid")
	}
	ipv6 := dest.Addr().Is6()
	err = m.Do(func() error { s, err = openSocket(p, ipv6); return err })
	if err != nil || p == TCP {
		return s, err
	}
	// Without this, the kernel reports only port unreachable to UDP sockets, and no
	// ICMP error to SCTP sockets.
	if ipv6 {
		err = s.setInt(unix.IPPROTO_IPV6, unix.IPV6_RECVERR, 1)
	} else {
		err = s.setInt(unix.IPPROTO_IP, unix.IP_RECVERR, 1)
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// bindSource binds to the source that was asked for, or chooses one.
func (m *Machine) bindSource(s *socket, p Protocol, dest, source netip.AddrPort) error {
	if p == TCP && source == (netip.AddrPort{}) {
		return nil // the kernel chooses
	}
	addr := source.Addr()
	if !addr.IsValid() {
		addr = netip.IPv6Unspecified()
		if dest.Addr().Is4() {
			addr = netip.IPv4Unspecified()
		}
		// An SCTP socket bound to no address offers its peer all of the
		// machine's; one bound to a single address offers none, which is what
		// NAT can cope with.
		own := m.Addr(dest.Addr().Is6())
		if p == SCTP && own.IsValid() && !dest.Addr().IsLoopback() && !dest.Addr().IsLinkLocalUnicast() {
			addr = own
		}
	}
	if p == TCP {
		if err := s.setInt(unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
			return err
		}
		if source.Port() == 0 {
			// The kernel then chooses at connect, among all free pairs.
			if err := s.setInt(unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1); err != nil {
				return err
			}
		}
		return s.bind(netip.AddrPortFrom(addr, source.Port()))
	}
	if source.Port() != 0 {
		return s.bind(netip.AddrPortFrom(addr, source.Port()))
	}
	for range 1000 {
		err := s.bind(netip.AddrPortFrom(addr, m.ports.take()))
		if !errors.Is(err, syscall.EADDRINUSE) {
			return err
		}
	}
	return syscall.EADDRINUSE
}

// send sends a datagram. One that a rule of the machine's own rejects fails
// with EPERM, like one that is dropped; the ICMP error that distinguishes the two
// is then pending already, or about to be: before Linux 6.3 a busy ksoftirqd delivers it.
func (s *socket) send(b []byte) error {
	_, err := s.Write(b)
	if !errors.Is(err, syscall.EPERM) {
		return err
	}
	pending := s.control(func(fd int) error {
		const wait = 200 // milliseconds; only a dropped datagram takes them all
		unix.Poll([]unix.PollFd{{Fd: int32(fd)}}, wait)
		return pendingError(fd)
	})
	return cmp.Or(pending, err)
}

// receive waits for the server's next message until the socket's deadline. A message of UDP
// is the server's answer with an echo, one of TCP and SCTP is a line.
//
// This process is the server, too, and may be late to run either side: a message that is
// there after another tenth of the timeout is in time.
func (c *client) receive(timeout time.Duration) (a answer, line []byte, err error) {
	for again := false; ; again = true {
		if c.proto == UDP {
			a, line, err = c.readDatagram()
		} else {
			line, err = c.lines.next()
		}
		if again || !errors.Is(err, os.ErrDeadlineExceeded) || c.file.SetDeadline(time.Now().Add(timeout/10)) != nil {
			return a, line, err
		}
	}
}

// readDatagram reads one answer of a UDP server: its line, and the echo.
func (s *socket) readDatagram() (answer, []byte, error) {
	buf := make([]byte, bufferSize)
	n, err := s.Read(buf)
	if err != nil {
		return answer{}, nil, err
	}
	line, echo, _ := bytes.Cut(buf[:n], []byte("\n"))
	a, err := parseAnswer(line)
	return a, echo, err
}
