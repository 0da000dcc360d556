// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	mdsocket "github.com/mdlayher/socket"
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

// socket is a socket of one of the protocols. Package net has no SCTP.
type socket struct {
	*mdsocket.Conn
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
	c, err := mdsocket.Socket(domain, kind, proto, string(p), nil)
	if err != nil {
		return nil, err
	}
	if ipv6 {
		if err := c.SetsockoptInt(unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1); err != nil {
			c.Close()
			return nil, err
		}
	}
	return &socket{Conn: c, proto: p}, nil
}

// control runs fn on the descriptor.
func (s *socket) control(fn func(fd int) error) error {
	raw, err := s.SyscallConn()
	if err != nil {
		return err
	}
	if cerr := raw.Control(func(fd uintptr) { err = fn(int(fd)) }); cerr != nil {
		return cerr
	}
	return err
}

// connect connects, or gives up with os.ErrDeadlineExceeded when the timeout has passed since
// the first packet.
//
// An ICMP error that arrives within the connect call, as usual on veth pairs, is only a soft
// error to TCP over IPv6 and to SCTP (seen on 6.12 and 6.18): the kernel reports it when TCP
// repeats the SYN after a second, or never. SO_ERROR reports soft errors too, so it is read at
// once.
func (s *socket) connect(dest netip.AddrPort, timeout time.Duration) error {
	err := s.control(func(fd int) error { return unix.Connect(fd, sockaddr(dest)) })
	if err != unix.EINPROGRESS && err != unix.EINTR && err != unix.EALREADY {
		return err
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return err
	}
	if err := s.SetDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	werr := raw.Write(func(fd uintptr) bool {
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
	if err := errors.Join(s.SetsockoptInt(level, option, 1), s.Bind(sockaddr(addr))); err != nil || s.proto == UDP {
		return err
	}
	return s.Listen(65535) // the kernel bounds it by net.core.somaxconn
}

// local returns the socket's own address, the invalid one if it has none.
func (s *socket) local() netip.AddrPort {
	a, _ := s.Getsockname()
	return addrPort(a)
}

// abortOnClose makes Close end the connection with TCP's RST or SCTP's ABORT: no TIME_WAIT
// holds the port, and conntrack takes the next connection from it as a new one.
func (s *socket) abortOnClose() {
	s.abort.Store(true)
	_ = s.control(func(fd int) error {
		return unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	})
}

// Close ends the socket's connection or listener before its descriptor is closed: a child of
// this process holds copies of all descriptors between fork and exec.
func (s *socket) Close() error {
	_ = s.control(func(fd int) error {
		switch {
		case s.listens.Load() && s.proto == SCTP:
			return unix.Listen(fd, 0) // the way to stop an SCTP listener
		case s.proto != TCP:
			return nil
		case s.abort.Load():
			var none unix.RawSockaddr // a connect to no address (AF_UNSPEC) resets the connection
			_, _, _ = unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&none)), unsafe.Sizeof(none))
			return nil
		}
		return unix.Shutdown(fd, unix.SHUT_RDWR)
	})
	return closeNow(s.Conn)
}

// closeNow closes c while this process is not about to fork; see socket.Close.
func closeNow(c io.Closer) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return c.Close()
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

// catchUp returns when packets and goroutines that were waiting for a processor have had it,
// so that on a busy machine a late answer is not taken for a lost one: datagrams go to another
// goroutine and back on this process's lo. One may overtake what waits on another processor.
func catchUp() {
	c, err := net.Dial("udp", echo())
	if err != nil {
		return
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	for range 3 {
		_, _ = c.Write([]byte{0})
		_, _ = c.Read([]byte{0})
	}
}

// echo returns the address of a server that lives as long as the process.
var echo = sync.OnceValue(func() string {
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		return ""
	}
	go func() {
		for buf := make([]byte, 1); ; {
			if n, from, err := server.ReadFrom(buf); err == nil {
				_, _ = server.WriteTo(buf[:n], from)
			}
		}
	}()
	return server.LocalAddr().String()
})
