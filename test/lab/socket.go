// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Protocol is a transport protocol, by the name that Kubernetes gives it.
type Protocol string

// The protocols of Services.
const (
	TCP  Protocol = "TCP"
	UDP  Protocol = "UDP"
	SCTP Protocol = "SCTP" // one-to-one sockets, for which the kernel needs CONFIG_IP_SCTP
)

// bufferSize is that of a read, in bytes. Lines of the lab's protocol are shorter.
const bufferSize = 4096

// socket is a non-blocking socket that Go's poller waits for. Package net has
// no SCTP.
type socket struct {
	file  *os.File
	raw   syscall.RawConn
	proto Protocol

	listens, abort atomic.Bool // how Close ends it
}

// openSocket opens a socket in the calling thread's namespace. An IPv6 one is
// for IPv6 only: an SCTP socket of both families would list its addresses of
// both to its peer, past every NAT.
func openSocket(p Protocol, ipv6 bool) (*socket, error) {
	domain, kind, proto := unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_TCP
	if ipv6 {
		domain = unix.AF_INET6
	}
	switch p {
	case TCP:
	case UDP:
		kind, proto = unix.SOCK_DGRAM, unix.IPPROTO_UDP
	case SCTP:
		proto = unix.IPPROTO_SCTP
	default:
		return nil, fmt.Errorf("protocol %q: %w", p, errors.ErrUnsupported)
	}
	fd, err := unix.Socket(domain, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, proto)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	if ipv6 {
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1); err != nil {
			unix.Close(fd)
			return nil, os.NewSyscallError("setsockopt IPV6_V6ONLY", err)
		}
	}
	return newSocket(p, fd)
}

// newSocket takes over a non-blocking file descriptor.
func newSocket(p Protocol, fd int) (*socket, error) {
	f := os.NewFile(uintptr(fd), "socket")
	raw, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return nil, err
	}
	return &socket{file: f, raw: raw, proto: p}, nil
}

// control runs fn on the descriptor.
func (s *socket) control(fn func(fd int) error) error {
	var err error
	if cerr := s.raw.Control(func(fd uintptr) { err = fn(int(fd)) }); cerr != nil {
		return cerr
	}
	return err
}

func (s *socket) setInt(level, option, value int) error {
	return s.control(func(fd int) error { return unix.SetsockoptInt(fd, level, option, value) })
}

func (s *socket) bind(a netip.AddrPort) error {
	return s.control(func(fd int) error { return unix.Bind(fd, sockaddr(a)) })
}

// connect connects, or gives up after the timeout with os.ErrDeadlineExceeded. The time
// begins with the first packet, however late a busy machine sends it.
//
// An ICMP error that arrives while the connect call still holds the socket is
// only a soft error to TCP over IPv6 and to SCTP: the kernel reports it when TCP
// repeats the SYN after a second, or never. On veth pairs this is the usual case
// (seen on 6.12 and 6.18), also for the rejection of a Service without endpoints,
// because a packet is handled within the call that sends it. SO_ERROR reports soft
// errors too, so it is read at once.
func (s *socket) connect(dest netip.AddrPort, timeout time.Duration) error {
	err := s.control(func(fd int) error { return unix.Connect(fd, sockaddr(dest)) })
	if err != unix.EINPROGRESS && err != unix.EINTR && err != unix.EALREADY {
		return err
	}
	if err := s.file.SetDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	werr := s.raw.Write(func(fd uintptr) bool {
		if err = pendingError(int(fd)); err != nil {
			return true
		}
		// The poller may wake up for nothing; only a peer is proof.
		_, perr := unix.Getpeername(int(fd))
		return perr == nil
	})
	if werr == nil {
		return err
	}
	// Perhaps only this process was late. The cause may also be a soft error, which does
	// not end the wait.
	catchUp()
	if err := s.control(pendingError); err != nil {
		return err
	}
	if s.control(s.connected) == nil {
		return nil
	}
	return werr
}

// connected fails unless the socket is connected by its first SYN.
func (s *socket) connected(fd int) error {
	if _, err := unix.Getpeername(fd); err != nil || s.proto != TCP {
		return err
	}
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	// A busy machine also repeats a SYN whose answer it only handles later. Timestamps then
	// tell that the answer is to a SYN of a second ago, the first.
	if repeatedAfter := uint32(time.Second / time.Microsecond); err == nil && info.Total_retrans > 0 && info.Rtt < repeatedAfter {
		err = errors.New("the SYN was repeated")
	}
	return err
}

// pendingError takes the socket's pending error, soft errors included.
func pendingError(fd int) error {
	code, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err == nil && code != 0 {
		err = unix.Errno(code)
	}
	return err
}

// listen makes the socket accept connections on addr, or receive datagrams together with
// the address that each was sent to.
func (s *socket) listen(addr netip.AddrPort) error {
	s.listens.Store(true)
	level, option := unix.SOL_SOCKET, unix.SO_REUSEADDR // a port with connections in TIME_WAIT, too
	switch {
	case s.proto == UDP && addr.Addr().Is6():
		level, option = unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO
	case s.proto == UDP:
		level, option = unix.IPPROTO_IP, unix.IP_PKTINFO
	}
	if err := s.setInt(level, option, 1); err != nil {
		return os.NewSyscallError("setsockopt", err)
	}
	if err := s.bind(addr); err != nil || s.proto == UDP {
		return os.NewSyscallError("bind", err)
	}
	// The kernel bounds the backlog by net.core.somaxconn.
	return os.NewSyscallError("listen", s.control(func(fd int) error { return unix.Listen(fd, 65535) }))
}

// accept waits for the next connection.
func (s *socket) accept() (*socket, netip.AddrPort, error) {
	var (
		fd   int
		from unix.Sockaddr
		err  error
	)
	rerr := s.raw.Read(func(lfd uintptr) bool {
		fd, from, err = unix.Accept4(int(lfd), unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		return err != unix.EAGAIN && err != unix.EINTR
	})
	if rerr != nil {
		return nil, netip.AddrPort{}, rerr
	}
	if err != nil {
		return nil, netip.AddrPort{}, os.NewSyscallError("accept", err)
	}
	c, err := newSocket(s.proto, fd)
	return c, addrPort(from), err
}

// receiveFrom waits for a datagram and returns its length and that of its control messages.
func (s *socket) receiveFrom(buf, oob []byte) (n, oobn int, from unix.Sockaddr, err error) {
	rerr := s.raw.Read(func(fd uintptr) bool {
		n, oobn, _, from, err = unix.Recvmsg(int(fd), buf, oob, 0)
		return err != unix.EAGAIN && err != unix.EINTR
	})
	return n, oobn, from, errors.Join(rerr, err)
}

// sendTo sends a datagram with control messages.
func (s *socket) sendTo(b, oob []byte, to unix.Sockaddr) (err error) {
	werr := s.raw.Write(func(fd uintptr) bool {
		err = unix.Sendmsg(int(fd), b, oob, to, 0)
		return err != unix.EAGAIN && err != unix.EINTR
	})
	return errors.Join(werr, err)
}

// local returns the socket's own address, the invalid one if it has none.
func (s *socket) local() netip.AddrPort {
	var a netip.AddrPort
	_ = s.control(func(fd int) error {
		sa, err := unix.Getsockname(fd)
		if err == nil {
			a = addrPort(sa)
		}
		return err
	})
	return a
}

// abortOnClose makes Close end the connection with TCP's RST or SCTP's ABORT.
// Then no TIME_WAIT holds the port, and conntrack takes the next connection from
// the same port as a new one.
func (s *socket) abortOnClose() {
	s.abort.Store(true)
	_ = s.control(func(fd int) error {
		return unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	})
}

// Read, Write and Close make a socket an io.ReadWriteCloser. Unlike os.File's,
// their errors do not name the descriptor.
func (s *socket) Read(b []byte) (int, error) {
	n, err := s.file.Read(b)
	return n, bare(err)
}

func (s *socket) Write(b []byte) (int, error) {
	n, err := s.file.Write(b)
	return n, bare(err)
}

func (s *socket) Close() error {
	s.endAtOnce()
	return closeNow(s.file)
}

// endAtOnce ends the socket's connection or listener before its descriptor is closed.
// Closing is not always enough: a child of this process holds copies of all descriptors
// between fork and exec, with which a listener would go on to accept and a connection to
// hold its port.
func (s *socket) endAtOnce() {
	_ = s.control(func(fd int) error {
		switch {
		case s.listens.Load() && s.proto == SCTP:
			return unix.Listen(fd, 0) // the way to stop an SCTP listener
		case s.proto != TCP:
			return nil
		case s.abort.Load():
			return disconnect(fd)
		}
		return unix.Shutdown(fd, unix.SHUT_RDWR)
	})
}

// disconnect resets a TCP connection, by a connect to no address (AF_UNSPEC).
func disconnect(fd int) error {
	var sa unix.RawSockaddr
	_, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&sa)), unsafe.Sizeof(sa))
	if errno != 0 {
		return errno
	}
	return nil
}

// closeNow closes c while this process is not about to fork; see endAtOnce. A
// short while in the child's exec remains, which cannot be excluded from here.
func closeNow(c io.Closer) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return c.Close()
}

func bare(err error) error {
	if pe := (*os.PathError)(nil); errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

// sockaddr is for addresses without a zone, except that a numeric zone is taken
// as the link's index.
func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
	}
	sa := &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}
	var zone uint32
	if _, err := fmt.Sscan(a.Addr().Zone(), &zone); err == nil {
		sa.ZoneId = zone
	}
	return sa
}

func addrPort(sa unix.Sockaddr) netip.AddrPort {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr).Unmap(), uint16(sa.Port))
	}
	return netip.AddrPort{}
}
