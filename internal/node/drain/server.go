// SPDX-License-Identifier: Apache-2.0

// Package drain tells a pod that is being deleted when new connections have ceased to come to it.
//
// 'slipstream drained', a preStop hook, asks on a Unix socket of the node's proxy. The kernel tells the proxy from which network
// namespace (SIOCGSKNS), and which addresses are there. So a pod can ask about itself only. From then on the proxy counts
// conntrack's events of new connections to these addresses.
package drain

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/netfilter/ctnetlink"
	"github.com/slipstream-proxy/slipstream/internal/node/load"
	"github.com/slipstream-proxy/slipstream/internal/node/netif"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Result says why a wait has ended.
type Result struct {
	Quiet       bool          `json:"quiet"` // no new connection came for the time that was asked for
	Waited      time.Duration `json:"waited"`
	Connections int           `json:"connections"`     // new ones that came since the pod first asked
	Blind       string        `json:"blind,omitempty"` // why the node cannot tell
}

// Server answers pods.
type Server struct {
	// MinWait returns the least time that a pod with some addresses waits if it does not say it.
	MinWait func(context.Context, []netip.Addr) time.Duration

	mu      sync.Mutex
	clients map[uint64]int  // connections, by the inode of the client's network namespace
	pods    map[uint64]*pod // that wait
	to      map[netip.Addr]*pod
	node    map[netip.Addr]bool // addresses of the node

	costly sync.Mutex // see rarely
}

// pod is one that waits, and what has come to it.
type pod struct {
	look      func() error // sets the next three fields, once
	addresses []netip.Addr
	linked    bool
	minWait   time.Duration

	waits       int // requests
	connections int
	tracked     int  // connections to it in conntrack's table, if that was read
	seen        bool // something other than the node has a connection with it
	last        time.Time
}

const (
	longest  = time.Hour             // that a pod may wait
	shortest = 4 * tick              // that it may wait after a connection
	tick     = 50 * time.Millisecond // between two looks at conntrack's events

	// Silence proves little if a pod got fewer connections than these: while it waits, or lately, as conntrack's table has
	// them for ten seconds to two minutes. It waits longer then, unless it says how long.
	fewComing  = 10
	fewTracked = 300
	longWait   = 10 * time.Second

	mostClients = 16 // of a pod, and 16 of all network namespaces to which no interface leads
	requestTime = 5 * time.Second
)

// What the node cannot see.
const (
	notLinked = "no interface of the node leads to the pod's network namespace"
	notSeen   = "the node has not seen any connection of this pod"
)

// Serve answers until ctx ends, or the listener fails.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	s.mu.Lock()
	s.clients, s.pods, s.to = map[uint64]int{}, map[uint64]*pod{}, map[netip.Addr]*pod{}
	s.mu.Unlock()
	server := &http.Server{
		Handler: http.HandlerFunc(s.answer), ReadHeaderTimeout: requestTime, MaxHeaderBytes: 4096,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, client{}, c) },
	}
	server.SetKeepAlivesEnabled(false)
	ctx, cancel := context.WithCancel(ctx)
	defer context.AfterFunc(ctx, func() { server.Close() })()
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel()
	watching.Go(func() { s.watch(ctx) })
	return server.Serve(listener{l, s})
}

// listener accepts a bounded number of connections of each pod.
type listener struct {
	net.Listener
	*Server
}

// client is a connection. It is also the key of one in contexts.
type client struct {
	net.Conn
	of     *Server
	inode  uint64 // 0 if no interface leads to the namespace
	id     int
	closed *sync.Once
}

func (l listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		inode, id, err := namespace(c)
		if id < 0 {
			inode = 0
		}
		l.mu.Lock()
		if err != nil || l.clients[inode] == mostClients {
			c.Close()
		} else {
			l.clients[inode]++
			c = client{c, l.Server, inode, id, new(sync.Once)}
		}
		l.mu.Unlock()
		if c, ok := c.(client); ok {
			return c, nil
		}
	}
}

func (c client) Close() error {
	c.closed.Do(func() {
		c.of.mu.Lock()
		defer c.of.mu.Unlock()
		if c.of.clients[c.inode]--; c.of.clients[c.inode] == 0 {
			delete(c.of.clients, c.inode)
		}
	})
	return c.Conn.Close()
}

// answer waits for a pod: quietly for the duration quiet, from minWait to maxWait.
func (s *Server) answer(w http.ResponseWriter, r *http.Request) {
	durations, q := map[string]time.Duration{"minWait": -1}, r.URL.Query()
	for name := range q {
		d, err := time.ParseDuration(q.Get(name))
		if err != nil || d < 0 {
			http.Error(w, fmt.Sprintf("%s: %q is not a duration", name, q.Get(name)), http.StatusBadRequest)
			return
		}
		durations[name] = d
	}
	c := r.Context().Value(client{}).(client)
	result, err := s.wait(r.Context(), c, durations["minWait"], max(durations["quiet"], shortest), min(durations["maxWait"], longest))
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	_ = json.NewEncoder(w).Encode(result) // the pod may have ended
}

func (s *Server) wait(ctx context.Context, c client, least, quietTime, most time.Duration) (result Result, err error) {
	if c.id < 0 {
		return Result{Blind: notLinked}, nil
	}
	p := s.join(ctx, c.inode, c.id)
	defer s.leave(c.inode, p)
	if err := p.look(); err != nil {
		return result, err
	}
	if !p.linked {
		return Result{Blind: notLinked}, nil
	}
	given := least >= 0
	if !given {
		least = p.minWait
	}
	begun, looked := time.Now(), false
	ticks := time.NewTicker(tick)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return result, errors.New("the proxy ends")
		case <-ticks.C:
		}
		waited := time.Since(begun)
		s.mu.Lock()
		result.Connections = p.connections
		quiet, seen := waited >= max(least, quietTime) && time.Since(p.last) >= quietTime, p.seen
		few := p.connections < fewComing && p.tracked < fewTracked
		s.mu.Unlock()
		if quiet {
			// Silence says nothing if the kernel does not report.
			if err := load.Ask(0); err != nil {
				return Result{Blind: err.Error()}, nil
			}
		}
		// Conntrack forgets the last connections of a pod with few while it waits, those that were reset after ten seconds.
		// So its table is read early, but not if many connections come.
		if waited >= min(shortest, most) && few && !looked {
			looked = true
			if err := s.readTable(ctx, p); err != nil {
				return result, err
			}
			continue
		}
		switch {
		case quiet && seen && (given || !few || waited >= longWait):
			result.Quiet = true
			return result, nil
		case waited >= most && !seen:
			result.Blind = notSeen
			return result, nil
		case waited >= most:
			return result, nil
		}
	}
}

// join begins a wait.
func (s *Server) join(ctx context.Context, inode uint64, id int) *pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pods[inode]
	if p == nil {
		p = &pod{}
		p.look = sync.OnceValue(func() error { return s.rarely(func() error { return s.look(context.WithoutCancel(ctx), p, id) }) })
		s.pods[inode] = p
	}
	p.waits++
	return p
}

// look asks the kernel about a pod and about the node.
func (s *Server) look(ctx context.Context, p *pod, id int) (err error) {
	links, err := netif.Complete(netlink.LinkList)
	// An interface here has its peer, as veth has, in the pod's network namespace.
	p.linked = slices.ContainsFunc(links, func(l netlink.Link) bool { return l.Attrs().NetNsID == id })
	if err != nil || !p.linked {
		return err
	}
	if p.addresses, err = addresses(id); err != nil {
		return fmt.Errorf("addresses of the pod: %w", err)
	}
	interfaces, err := netif.Namespace(0).List()
	if err != nil {
		return err
	}
	p.minWait = s.MinWait(ctx, p.addresses)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.node = map[netip.Addr]bool{}
	for _, i := range interfaces {
		for _, a := range i.Addresses {
			s.node[a] = true
		}
	}
	p.last = time.Now() // what came before was not watched
	for _, a := range p.addresses {
		s.to[a] = p
	}
	return nil
}

// leave ends a wait.
func (s *Server) leave(inode uint64, p *pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.waits--; p.waits > 0 {
		return
	}
	delete(s.pods, inode)
	for _, a := range p.addresses {
		if s.to[a] == p {
			delete(s.to, a)
		}
	}
}

// rarely calls f, which costs more than the pod that causes it pays. All calls take a tenth of the time of a processor at most.
func (s *Server) rarely(f func() error) error {
	s.costly.Lock()
	begun := time.Now()
	err := f()
	time.AfterFunc(9*time.Since(begun), s.costly.Unlock)
	return err
}

// watch counts new connections while pods wait.
func (s *Server) watch(ctx context.Context) {
	ticks := time.NewTicker(tick)
	defer ticks.Stop()
	var events *ctnetlink.Events
	for {
		select {
		case <-ctx.Done():
			if events != nil {
				_ = events.Close()
			}
			return
		case <-ticks.C:
		}
		s.mu.Lock()
		idle := len(s.to) == 0
		s.mu.Unlock()
		lost := false
		var err error
		switch {
		case idle && events != nil:
			_ = events.Close()
			events = nil
		case !idle && events == nil:
			events, err = ctnetlink.Listen(0, nil, unix.NFNLGRP_CONNTRACK_NEW)
			lost = true // those that came since the first pod asked
		case events != nil:
			lost, err = events.Read(s.event)
		}
		if lost || err != nil {
			s.mu.Lock()
			for _, p := range s.pods { // connections may have come to any of them
				p.last = time.Now()
			}
			s.mu.Unlock()
		}
	}
}

// event counts a new connection.
func (s *Server) event(message []byte) {
	var e ctnetlink.Entry
	if !e.Parse(message[unix.NLMSG_HDRLEN:]) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	probes := s.node[e.Original.Src.Addr()] && e.Original.Dst == e.Reply.Src // from the node straight to a pod, as the kubelet does
	if p := s.to[e.Reply.Src.Addr()]; p != nil && !probes {
		p.connections, p.seen, p.last = p.connections+1, true, time.Now()
	}
}

// readTable counts the connections to a pod that conntrack has, and looks whether it has any between the pod and something
// else than the node. So it is with most pods. Where a network plugin passes conntrack by, it is with none.
func (s *Server) readTable(ctx context.Context, p *pod) error {
	s.mu.Lock()
	node := s.node
	s.mu.Unlock()
	to, from := 0, false
	err := s.rarely(func() error {
		conn, err := ctnetlink.Dial(0)
		if err != nil {
			return err
		}
		defer conn.Close()
		return conn.Dump(ctx, unix.AF_UNSPEC, nil, func(data []byte) {
			var e ctnetlink.Entry
			if !e.Parse(data) {
				return
			}
			client, server := e.Original.Src.Addr(), e.Reply.Src.Addr()
			if slices.Contains(p.addresses, server) && !node[client] {
				to++
			}
			from = from || slices.Contains(p.addresses, client) && !node[server]
		})
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	p.tracked, p.seen = to, p.seen || from || to > 0
	return err
}

// Install copies this program to a directory, for the containers of a pod that share it.
func Install(dir string) error {
	program, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return err
	}
	return os.WriteFile(dir+"/slipstream", program, 0o755)
}
