// SPDX-License-Identifier: Apache-2.0

// Package loopback serves NodePorts on loopback addresses (KEP-6032), which the kernel cannot:
// it does not forward packets with a loopback source address to other machines, unless
// route_localnet is set, and never in IPv6. A relay listens on 127.0.0.1 or ::1 and makes a
// connection of the node's own to an endpoint for each connection that it accepts.
//
// The kernel moves the data of TCP connections by splice(2), without copies to this process.
// A connection stays with its endpoint until one side ends it, as other connections to
// Services. Flows of UDP end after conntrack's timeouts, and when their endpoint no longer
// serves.
//
// Package desired decides everything about endpoints; see [desired.Relay].
package loopback

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// Options configure a Server.
type Options struct {
	// In calls a function in the network namespace to serve. Nil stands for the
	// process's own.
	In func(func() error) error

	// UDPTimeout and UDPStreamTimeout end idle flows of UDP: those without, and with,
	// an answer of the endpoint.
	UDPTimeout, UDPStreamTimeout time.Duration

	// Report is called when a listener cannot be opened, and again when the error has
	// changed. Failed is called for each attempt. Listening is called with the number
	// of listeners by desired.Family when it may have changed. They must not call the
	// Server, and may be nil.
	Report    func(service types.NamespacedName, err error)
	Failed    func(desired.Family)
	Listening func([2]int)
}

// descriptors is how many file descriptors a TCP connection takes: two sockets, and the
// pipes of splice(2) in both directions.
const descriptors = 6

// Server serves relays. Its methods may be called from several goroutines.
type Server struct {
	options Options
	end     context.Context // ends with the Server
	cancel  context.CancelFunc
	running sync.WaitGroup

	connections chan struct{} // has an item for each TCP connection
	flows       atomic.Int64  // of UDP
	maxFlows    int64

	mu        sync.Mutex
	ports     map[desired.FrontendKey]*port
	failing   map[*port]struct{} // that could not listen
	retry     *time.Timer        // pending while some fail
	listening [2]int
}

// port is a relay that exists, with or without backends.
type port struct {
	key desired.FrontendKey
	choice

	// Guarded by the Server's lock.
	service  types.NamespacedName
	listener io.Closer // nil if there is none
	reported string    // the last error
}

// New makes a Server without relays. TCP connections may take a quarter of the file
// descriptors that this process may have, and flows of UDP another. Further connections
// wait, and datagrams of further flows are dropped. When ctx ends, connections are reset.
func New(ctx context.Context, o Options) *Server {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		limit.Cur = 1024
	}
	quarter := int(min(limit.Cur, 1<<20) / 4)
	if o.In == nil {
		o.In = func(f func() error) error { return f() }
	}
	s := &Server{
		options: o, connections: make(chan struct{}, max(1, quarter/descriptors)), maxFlows: int64(quarter),
		ports: map[desired.FrontendKey]*port{}, failing: map[*port]struct{}{},
	}
	s.end, s.cancel = context.WithCancel(ctx)
	return s
}

// Set replaces some relays. TCP connections of a relay that ends stay.
func (s *Server) Set(relays []desired.Relay) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end.Err() != nil {
		return
	}
	for _, r := range relays {
		p := s.ports[r.FrontendKey]
		switch {
		case r.Service == (desired.ServicePort{}):
			if p != nil {
				s.close(p)
				delete(s.ports, r.FrontendKey)
			}
			continue
		case p == nil:
			p = &port{key: r.FrontendKey}
			s.ports[r.FrontendKey] = p
		}
		p.service = types.NamespacedName{Namespace: r.Service.Namespace, Name: r.Service.Name}
		p.set(&r)
		switch l, _ := p.listener.(*udpListener); {
		case l != nil && l.keep(r.Serving): // flows stay also if there are no endpoints for new ones
		case len(r.Backends) == 0:
			s.close(p)
		case p.listener == nil:
			s.open(p)
		}
	}
	s.settle()
}

// settle ends a change of listeners.
func (s *Server) settle() {
	if s.options.Listening != nil {
		s.options.Listening(s.listening)
	}
	if len(s.failing) > 0 && s.retry == nil {
		const retryPeriod = 5 * time.Second // the pause before a listener that could not be opened is tried again
		s.retry = time.AfterFunc(retryPeriod, s.tryAgain)
	}
}

func (s *Server) tryAgain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.retry = nil
	if s.end.Err() != nil {
		return
	}
	for p := range s.failing {
		s.open(p)
	}
	s.settle()
}

// open opens a port's listener.
func (s *Server) open(p *port) {
	family := desired.FamilyOf(p.key.Addr())
	err := s.options.In(func() error { return s.listen(p) })
	if err == nil {
		s.listening[family]++
		delete(s.failing, p)
		p.reported = ""
		klog.FromContext(s.end).V(2).Info("Serving a NodePort on a loopback address", "service", p.service, "address", p.key)
		return
	}
	s.failing[p] = struct{}{}
	if s.options.Failed != nil {
		s.options.Failed(family)
	}
	err = fmt.Errorf("%s: NodePort %d cannot be served on %s: %w", "Service "+p.service.String(), p.key.Port(), p.key, err)
	if text := err.Error(); text != p.reported && s.options.Report != nil {
		p.reported = text
		s.options.Report(p.service, err)
	}
}

func (s *Server) listen(p *port) error {
	var config net.ListenConfig
	config.SetMultipathTCP(false)
	family := map[bool]string{true: "6", false: "4"}[p.key.Addr().Is6()]
	if p.key.Protocol == desired.UDP {
		conn, err := config.ListenPacket(s.end, "udp"+family, p.key.AddrPort.String())
		if err != nil {
			return err
		}
		l := &udpListener{server: s, port: p, conn: conn.(*net.UDPConn), flows: map[netip.AddrPort]*flow{}}
		p.listener = l
		s.running.Go(l.serve)
		return nil
	}
	l, err := config.Listen(s.end, "tcp"+family, p.key.AddrPort.String())
	if err != nil {
		return err
	}
	p.listener = l
	s.running.Go(func() { s.serveTCP(p, l.(*net.TCPListener)) })
	return nil
}

// close closes a port's listener. The port is free on return.
func (s *Server) close(p *port) {
	delete(s.failing, p)
	p.reported = ""
	if p.listener != nil {
		p.listener.Close()
		p.listener = nil
		s.listening[desired.FamilyOf(p.key.Addr())]--
	}
}

// Close closes all listeners, connections and flows, and returns when their goroutines have
// ended. It may be called more than once.
func (s *Server) Close() {
	defer s.running.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cancel()
	if s.retry != nil {
		s.retry.Stop()
	}
	for _, p := range s.ports {
		s.close(p)
	}
	clear(s.ports)
	if s.options.Listening != nil {
		s.options.Listening(s.listening)
	}
}
