// SPDX-License-Identifier: Apache-2.0

package loopback

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/logonce"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// udpListener relays a NodePort of UDP.
type udpListener struct {
	server *Server
	port   *port
	conn   *net.UDPConn

	mu     sync.Mutex
	closed bool
	flows  map[netip.AddrPort]*flow // by client
}

// flow is a client's datagrams and the answers to them. It has a connected socket, so that
// the kernel drops answers of other senders.
type flow struct {
	client  netip.AddrPort
	backend desired.Backend
	conn    *net.UDPConn
	used    atomic.Int64 // when a datagram passed last, in nanoseconds after clock
	replied atomic.Bool
}

// clock is a reading of the monotonic clock, so that setting the time ends no flow and keeps none.
var clock = time.Now()

func (f *flow) use() { f.used.Store(int64(time.Since(clock))) }

// idle returns when the flow ends if no datagram passes.
func (f *flow) idle(o *Options) time.Time {
	timeout := o.UDPTimeout
	if f.replied.Load() {
		timeout = o.UDPStreamTimeout
	}
	return clock.Add(time.Duration(f.used.Load()) + timeout)
}

// serve forwards datagrams of clients until the listener is closed.
func (l *udpListener) serve() {
	var errs logonce.Errors
	for {
		err := receive(l.conn, func(datagram []byte, from unix.Sockaddr) {
			if f := l.flow(addrPort(from)); f != nil {
				f.use()
				_, _ = f.conn.Write(datagram) // as on any network, a datagram can be lost
			}
		})
		if errors.Is(err, net.ErrClosed) { // by this process
			return
		}
		errs.Log(klog.FromContext(l.server.end), err, "Could not receive a datagram", "address", l.port.key)
		if err != nil {
			time.Sleep(acceptPause)
		}
	}
}

// flow returns a client's flow, or a new one; nil if there can be none.
func (l *udpListener) flow(client netip.AddrPort) *flow {
	l.mu.Lock()
	defer l.mu.Unlock()
	if f := l.flows[client]; f != nil || l.closed {
		return f
	}
	b, ok := l.port.choose(client, time.Now())
	if !ok {
		return nil
	}
	s := l.server
	if s.flows.Add(1) > s.maxFlows {
		s.flows.Add(-1)
		klog.FromContext(s.end).V(2).Info("Dropped a datagram: too many flows", "address", l.port.key)
		return nil
	}
	f := &flow{client: client, backend: b}
	err := s.options.In(func() error {
		conn, err := net.Dial("udp", b.String())
		if err == nil {
			f.conn = conn.(*net.UDPConn)
		}
		return err
	})
	if err != nil {
		s.flows.Add(-1)
		klog.FromContext(s.end).V(4).Info("Could not send to an endpoint", "address", l.port.key, "endpoint", b, "reason", err.Error())
		return nil
	}
	f.use()
	l.flows[client] = f
	s.running.Go(func() {
		defer s.flows.Add(-1)
		l.answer(f)
		l.mu.Lock()
		defer l.mu.Unlock()
		f.conn.Close()
		if l.flows[f.client] == f { // the client's next datagram starts another
			delete(l.flows, f.client)
		}
	})
	return f
}

// answer returns a backend's answers to the client, from the address that it asked, until
// the flow is idle or closed.
func (l *udpListener) answer(f *flow) {
	for {
		idle := f.idle(&l.server.options)
		if !time.Now().Before(idle) || f.conn.SetReadDeadline(idle) != nil {
			return
		}
		err := receive(f.conn, func(datagram []byte, _ unix.Sockaddr) {
			f.use()
			f.replied.Store(true)
			_, _ = l.conn.WriteToUDPAddrPort(datagram, f.client)
		})
		// An ICMP error is about one datagram; the endpoint may answer the next.
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, unix.ECONNREFUSED) {
			return
		}
	}
}

// keep ends all flows except those to the given backends, and reports whether there are such.
func (l *udpListener) keep(serving []desired.Backend) (remain bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for client, f := range l.flows {
		if !slices.Contains(serving, f.backend) {
			f.conn.Close()
			delete(l.flows, client)
		}
	}
	return len(l.flows) > 0
}

// Close closes the listener and ends its flows.
func (l *udpListener) Close() error {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.keep(nil)
	return l.conn.Close()
}

// buffers are for datagrams of any size. A socket has one only while a datagram is there.
var buffers = sync.Pool{New: func() any { return new([1 << 16]byte) }}

// receive waits for a datagram, and passes it to take.
func receive(conn *net.UDPConn, take func(datagram []byte, from unix.Sockaddr)) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Read(func(fd uintptr) bool {
		buffer := buffers.Get().(*[1 << 16]byte)
		defer buffers.Put(buffer)
		var n int
		var from unix.Sockaddr
		for failed = unix.EINTR; failed == unix.EINTR; {
			n, from, failed = unix.Recvfrom(int(fd), buffer[:], 0)
		}
		switch failed {
		case unix.EAGAIN:
			return false
		case nil:
			take(buffer[:n], from)
		}
		return true
	})
	if err == nil && failed != nil {
		err = os.NewSyscallError("recvfrom", failed.(syscall.Errno))
	}
	return err
}

// addrPort converts the address of a UDP socket.
func addrPort(from unix.Sockaddr) netip.AddrPort {
	switch a := from.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port))
	}
	return netip.AddrPort{}
}
