// SPDX-License-Identifier: Apache-2.0

package drain

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/netfilter/ctnetlink"
	"github.com/slipstream-proxy/slipstream/internal/node/load"
	"github.com/slipstream-proxy/slipstream/internal/node/netif"
	"golang.org/x/sys/unix"
)

// Server answers pods.
type Server struct {
	// MinWait returns the least time to wait if a pod does not say it.
	MinWait func(context.Context) time.Duration

	mu    sync.Mutex
	pods  map[uint64]*pod // that wait, by the inode of their network namespace
	to    map[netip.Addr]*pod
	node  map[netip.Addr]bool // addresses of the node
	asked []net.Conn          // connections without a request yet, the oldest first

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
	seen        bool // something other than the node has a connection with it
	last        time.Time
}

// Bounds on what pods can have the proxy hold.
const (
	mostAsked = 64
	mostPods  = 1024
	mostWaits = 16 // for a pod

	requestTime = 5 * time.Second
	answerTime  = 5 * time.Second
)

// What the node cannot see.
const (
	notLinked = "no interface of the node leads to the pod's network namespace"
	notSeen   = "the node has not seen any connection of this pod"
)

// Serve answers until the listener fails, or is closed.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	s.mu.Lock()
	s.pods, s.to = map[uint64]*pod{}, map[netip.Addr]*pod{}
	s.mu.Unlock()
	var all sync.WaitGroup
	all.Go(func() { s.watch(ctx) })
	for {
		c, err := l.Accept()
		if err != nil {
			cancel()
			s.mu.Lock()
			for _, c := range s.asked {
				c.Close()
			}
			s.mu.Unlock()
			all.Wait()
			return err
		}
		s.begin(c)
		all.Go(func() {
			defer c.Close()
			var result Result
			r, fd, err := s.receive(c)
			if err == nil {
				result, err = s.wait(ctx, c, r, fd)
			}
			if err != nil {
				result.Refused = err.Error()
			}
			_ = c.SetWriteDeadline(time.Now().Add(answerTime))
			_ = json.NewEncoder(c).Encode(result) // the pod may have ended
		})
	}
}

// begin notes a connection without a request. The oldest one is closed if there are too many: an honest client sends
// its request at once.
func (s *Server) begin(c net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.asked = append(s.asked, c); len(s.asked) > mostAsked {
		s.asked[0].Close()
		s.asked = s.asked[1:]
	}
}

// receive reads a request and the socket that comes with it.
func (s *Server) receive(c net.Conn) (r Request, fd int, err error) {
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.asked = slices.DeleteFunc(s.asked, func(o net.Conn) bool { return o == c })
	}()
	if err := c.SetReadDeadline(time.Now().Add(requestTime)); err != nil {
		return r, 0, err
	}
	data, rights := make([]byte, requestSize), make([]byte, unix.CmsgSpace(4))
	n, m, _, _, err := c.(*net.UnixConn).ReadMsgUnix(data, rights)
	if err != nil {
		return r, 0, err
	}
	var fds []int // there is room for two
	control, err := unix.ParseSocketControlMessage(rights[:m])
	for i := range control {
		some, _ := unix.ParseUnixRights(&control[i])
		fds = append(fds, some...)
	}
	if err == nil && len(fds) != 1 {
		err = fmt.Errorf("%d files come with the request, want 1", len(fds))
	}
	if err == nil {
		r, err = decode(data[:n])
	}
	if err == nil {
		return r, fds[0], nil
	}
	for _, fd := range fds {
		unix.Close(fd)
	}
	return r, 0, err
}

// wait waits for a pod, until the client closes its connection.
func (s *Server) wait(ctx context.Context, c net.Conn, r Request, fd int) (result Result, err error) {
	defer unix.Close(fd)
	inode, id, err := namespace(fd)
	if err != nil {
		return result, err
	}
	if id < 0 {
		return Result{Blind: notLinked}, nil
	}
	p, err := s.join(ctx, inode, id, fd)
	if err != nil {
		return result, err
	}
	defer s.leave(inode, p)
	if err := p.look(); err != nil {
		return result, err
	}
	if !p.linked {
		return Result{Blind: notLinked}, nil
	}
	least := max(p.minWait, r.Quiet)
	if r.MinWait != nil {
		least = max(*r.MinWait, r.Quiet)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := c.SetReadDeadline(time.Time{}); err != nil {
		return result, err
	}
	go func() {
		defer cancel()
		_, _ = c.Read(make([]byte, 1)) // the client says nothing more until it ends
	}()
	begun, before, looked := time.Now(), p.count(s), false
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
		result.Connections = p.connections - before
		quiet, seen := waited >= least && time.Since(p.last) >= r.Quiet, p.seen
		s.mu.Unlock()
		if quiet && !seen && !looked {
			looked = true
			if seen, err = s.tracked(ctx, p); err != nil {
				return result, err
			}
		}
		switch {
		case quiet && seen:
			// Silence says nothing if the kernel has ceased to report.
			if err := load.Ask(0); err != nil {
				return Result{Blind: err.Error()}, nil
			}
			result.Quiet = true
			return result, nil
		case waited >= r.MaxWait && !seen:
			result.Blind = notSeen
			return result, nil
		case waited >= r.MaxWait:
			return result, nil
		}
	}
}

func (p *pod) count(s *Server) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return p.connections
}

// join begins a wait.
func (s *Server) join(ctx context.Context, inode uint64, id, fd int) (*pod, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pods[inode]
	switch {
	case p == nil && len(s.pods) == mostPods:
		return nil, fmt.Errorf("%d pods of this node wait already", mostPods)
	case p != nil && p.waits == mostWaits:
		return nil, fmt.Errorf("this pod waits %d times already", mostWaits)
	case p == nil:
		p = &pod{}
		p.look = sync.OnceValue(func() error { return s.rarely(func() error { return s.look(ctx, p, id, fd) }) })
		s.pods[inode] = p
	}
	p.waits++
	return p, nil
}

// look asks the kernel about a pod and about the node.
func (s *Server) look(ctx context.Context, p *pod, id, fd int) (err error) {
	if p.linked, err = isLinked(id); err != nil || !p.linked {
		return err
	}
	if p.addresses, err = addresses(fd); err != nil {
		return fmt.Errorf("addresses of the pod: %w", err)
	}
	interfaces, err := netif.Namespace(0).List()
	if err != nil {
		return err
	}
	p.minWait = s.MinWait(ctx)
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
		var lost bool
		var err error
		switch {
		case idle && events != nil:
			_ = events.Close()
			events = nil
		case !idle && events == nil:
			events, err = ctnetlink.Listen(0, nil, unix.NFNLGRP_CONNTRACK_NEW)
		}
		if events != nil && err == nil {
			var some bool
			some, err = events.Read(s.event)
			lost = lost || some
		}
		if lost || err != nil {
			s.lost()
		}
	}
}

// lost notes that connections may have come to any pod.
func (s *Server) lost() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.pods {
		p.last = time.Now()
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
	if p := s.to[e.Reply.Src.Addr()]; p != nil && !s.probes(&e) {
		p.connections, p.seen, p.last = p.connections+1, true, time.Now()
	}
}

// probes reports whether a connection comes from the node straight to a pod, as the kubelet's probes do.
func (s *Server) probes(e *ctnetlink.Entry) bool {
	return s.node[e.Original.Src.Addr()] && e.Original.Dst == e.Reply.Src
}

// tracked reports whether conntrack has a connection between a pod and something else than the node. So it is with most
// pods. Where a network plugin passes conntrack by, it is with none.
func (s *Server) tracked(ctx context.Context, p *pod) (bool, error) {
	s.mu.Lock()
	node := s.node
	s.mu.Unlock()
	found := false
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
			found = found || slices.Contains(p.addresses, server) && !node[client] || slices.Contains(p.addresses, client) && !node[server]
		})
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	p.seen = p.seen || found
	return p.seen, err
}

// Install copies this program to a directory, for the containers of a pod that share it.
func Install(dir string) error {
	program, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return err
	}
	return os.WriteFile(dir+"/slipstream", program, 0o755)
}
