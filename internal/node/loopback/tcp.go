// SPDX-License-Identifier: Apache-2.0

package loopback

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/logonce"
	"k8s.io/klog/v2"
)

const (
	// dialTimeout is how long an endpoint may take to accept a connection. It is
	// kube-proxy's.
	dialTimeout = 5 * time.Second

	// acceptPause follows a failed accept, such as for lack of file descriptors.
	acceptPause = 100 * time.Millisecond
)

// serveTCP accepts connections until the listener is closed.
func (s *Server) serveTCP(p *port, l *net.TCPListener) {
	var errs logonce.Errors
	for {
		conn, err := l.AcceptTCP()
		if errors.Is(err, net.ErrClosed) { // by this process
			return
		}
		errs.Log(klog.FromContext(s.end), err, "Could not accept a connection", "address", p.key)
		if err != nil {
			time.Sleep(acceptPause)
			continue
		}
		select {
		case s.connections <- struct{}{}:
			s.running.Go(func() {
				defer func() { <-s.connections }()
				s.carry(p, conn)
			})
		case <-s.end.Done():
			reset(conn)
		}
	}
}

// carry carries a connection to a backend, and returns when it has ended.
func (s *Server) carry(p *port, client *net.TCPConn) {
	b, ok := p.choose(client.RemoteAddr().(*net.TCPAddr).AddrPort(), time.Now())
	var backend *net.TCPConn
	err := net.ErrClosed
	if ok {
		backend, err = s.dial(b)
	}
	if err != nil {
		klog.FromContext(s.end).V(4).Info("Could not connect to an endpoint", "address", p.key, "endpoint", b, "reason", err.Error())
		reset(client)
		return
	}
	defer context.AfterFunc(s.end, func() { reset(client, backend) })()
	done := make(chan struct{})
	go func() { defer close(done); pass(backend, client) }()
	pass(client, backend)
	<-done
	client.Close()
	backend.Close()
}

func (s *Server) dial(b desired.Backend) (conn *net.TCPConn, err error) {
	err = s.options.In(func() error {
		d := net.Dialer{Timeout: dialTimeout}
		c, err := d.DialContext(s.end, "tcp", b.String())
		if err == nil {
			conn = c.(*net.TCPConn)
		}
		return err
	})
	return conn, err
}

// pass moves one direction of a connection, by splice(2), until its sender ends it, and then
// ends it for the receiver. If one side fails, both are reset, so that neither takes an
// incomplete stream for a complete one.
func pass(to, from *net.TCPConn) {
	_, err := to.ReadFrom(from)
	if err == nil {
		err = to.CloseWrite()
	}
	if err != nil {
		reset(to, from)
	}
}

// reset ends connections at once, with a TCP reset.
func reset(all ...*net.TCPConn) {
	for _, c := range all {
		_ = c.SetLinger(0) // fails only if it is closed
		c.Close()
	}
}
