// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Errors of connections and datagram exchanges, for errors.Is.
var (
	// ErrRefused says that the other side refuses: a TCP RST, an SCTP ABORT or an
	// ICMP port unreachable in answer to the first packet.
	ErrRefused error = syscall.ECONNREFUSED
	// ErrTimeout says that no answer was received in time.
	ErrTimeout = os.ErrDeadlineExceeded
)

// Outcome names the result of an attempt, without addresses: "ok", "refused", "timeout",
// "closed without an answer", or the text of the error number ("no route to host").
func Outcome(err error) string {
	switch errno, is := errors.AsType[syscall.Errno](err); {
	case err == nil:
		return "ok"
	case errors.Is(err, ErrRefused):
		return "refused"
	case errors.Is(err, ErrTimeout):
		return "timeout"
	case errors.Is(err, io.EOF):
		return "closed without an answer"
	case is:
		return errno.Error()
	}
	return err.Error()
}

// Reply is the result of one exchange for a client.
type Reply struct {
	Server string         // the name that the server gives
	Seen   netip.AddrPort // the client, as the server sees it
	Local  netip.AddrPort // the server's own address and port, after any DNAT
	Source netip.AddrPort // the client's own address and port, before any SNAT
}

type connectOptions struct {
	timeout time.Duration
	source  netip.AddrPort
}

// ConnectOption changes defaults of Connect, Stream and StartLoad.
type ConnectOption func(*connectOptions)

// answerTimeout is the minimum timeout of the answer on an established connection: the
// server's goroutine may wait for seconds on a busy machine.
const answerTimeout = 20 * time.Second

// Timeout bounds a handshake, or the exchange of a datagram; the default is a second. The
// first answer on an established connection may take 20 seconds.
func Timeout(d time.Duration) ConnectOption { return func(o *connectOptions) { o.timeout = d } }

// Source sets the client's own address and port. Port 0 chooses a free one, the zero or an
// unspecified address chooses by the routes.
func Source(a netip.AddrPort) ConnectOption { return func(o *connectOptions) { o.source = a } }

// Connect makes one short connection, or exchanges one datagram, with a lab server. It waits
// for the server's answer and ends a connection with a reset. ICMP errors other than port
// unreachable are returned as their error numbers (EHOSTUNREACH), a datagram dropped by the
// machine's own rules as EPERM.
func (m *Machine) Connect(p Protocol, dest netip.AddrPort, opts ...ConnectOption) (Reply, error) {
	c, err := m.dial(p, dest, opts)
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
	timeout time.Duration
	reply   Reply

	// TCP and SCTP: what follows the first answer.
	buffer *bufio.Reader
	line   []byte // begun; it continues after a deadline that interrupted it
}

// dial connects and waits for the first answer.
func (m *Machine) dial(p Protocol, dest netip.AddrPort, opts []ConnectOption) (c *client, err error) {
	const defaultTimeout = time.Second // ends before TCP repeats a lost SYN, so that a lost one is a timeout
	o := connectOptions{timeout: defaultTimeout}
	for _, opt := range opts {
		opt(&o)
	}
	op := "open"
	defer func() {
		if err == nil {
			return
		}
		if c != nil {
			c.abortOnClose()
			c.Close()
		}
		if errors.Is(err, syscall.ETIMEDOUT) {
			err = ErrTimeout
		}
		c, err = nil, fmt.Errorf("%v %v: %s: %w", p, dest, op, err)
	}()
	s, err := m.clientSocket(p, dest)
	if err != nil {
		return nil, err
	}
	c = &client{socket: s, timeout: o.timeout, buffer: bufio.NewReader(s)}
	op = "bind"
	if err := m.bindSource(s, p, dest, o.source); err != nil {
		return c, err
	}
	op = "connect"
	if err := s.connect(dest, o.timeout); err != nil {
		return c, err
	}
	limit := max(o.timeout, answerTimeout)
	if p == UDP {
		op, limit = "send", o.timeout
		if err := s.send([]byte("hello\n")); err != nil {
			return c, err
		}
	}
	op = "receive"
	if err := s.SetDeadline(time.Now().Add(limit)); err != nil {
		return c, err
	}
	a, line, err := c.receive()
	if err == nil && p != UDP {
		a, err = parseAnswer(line)
	}
	c.reply = Reply{Server: a.Server, Seen: a.Client, Local: a.Local, Source: s.local()}
	return c, err
}

// clientSocket opens a socket in the machine's namespace.
func (m *Machine) clientSocket(p Protocol, dest netip.AddrPort) (*socket, error) {
	if !dest.IsValid() {
		return nil, errors.New("destination is not valid")
	}
	ipv6 := dest.Addr().Is6()
	s, err := In(m.Namespace, func() (*socket, error) { return openSocket(p, ipv6) })
	if err != nil || p == TCP {
		return s, err
	}
	// Without this, the kernel reports only port unreachable to UDP sockets, and no
	// ICMP error to SCTP sockets.
	level, option := unix.IPPROTO_IP, unix.IP_RECVERR
	if ipv6 {
		level, option = unix.IPPROTO_IPV6, unix.IPV6_RECVERR
	}
	if err := s.SetsockoptInt(level, option, 1); err != nil {
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
		addr = defaultRoute(dest.Addr()).Addr()
		// An SCTP socket bound to no address offers its peer all of the machine's. NAT
		// needs one that is bound to a single address and offers none.
		own := m.Addr(dest.Addr().Is6())
		if p == SCTP && own.IsValid() && !dest.Addr().IsLoopback() && !dest.Addr().IsLinkLocalUnicast() {
			addr = own
		}
	}
	if p == TCP {
		if err := s.SetsockoptInt(unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
			return err
		}
		if source.Port() == 0 {
			// The kernel then chooses at connect, among all free pairs.
			if err := s.SetsockoptInt(unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1); err != nil {
				return err
			}
		}
	}
	if p == TCP || source.Port() != 0 {
		return s.Bind(sockaddr(netip.AddrPortFrom(addr, source.Port())))
	}
	// The machine's next local port, for UDP and SCTP. The kernel would choose at random, and soon reuse a port with a
	// conntrack entry of an earlier backend (30 s for UDP, 10 s for SCTP), which looks like traffic to a removed
	// endpoint. For TCP, conntrack lets a SYN replace the entry of a closed connection.
	count := 1<<16 - uint32(m.profile.firstPort)
	for range 1000 {
		port := m.profile.firstPort + uint16(m.ports.Add(1)%count)
		err := s.Bind(sockaddr(netip.AddrPortFrom(addr, port)))
		if !errors.Is(err, syscall.EADDRINUSE) {
			return err
		}
	}
	return syscall.EADDRINUSE
}

// send sends a datagram. If a rule of the machine itself rejects or drops it, the error is
// EPERM. A pending ICMP error distinguishes the two; before Linux 6.3 a busy ksoftirqd
// delivers it later.
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
	if pending == nil {
		catchUp()
		pending = s.control(pendingError)
	}
	return cmp.Or(pending, err)
}

// receive waits for the server's next message until the socket's deadline, and again if this
// process, which is the server too, was late. A message of UDP is the server's answer with an
// echo, one of TCP and SCTP is a line with its newline.
func (c *client) receive() (a answer, line []byte, err error) {
	for again := false; ; again = true {
		if c.proto == UDP {
			a, line, err = c.readDatagram()
		} else {
			var rest []byte
			rest, err = c.buffer.ReadBytes('\n')
			if c.line = append(c.line, rest...); err == nil {
				line, c.line = c.line, nil
			}
		}
		if again || !errors.Is(err, os.ErrDeadlineExceeded) {
			return a, line, err
		}
		catchUp()
		if err := c.SetDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
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
