// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"

	"github.com/slipstream-proxy/slipstream/test/lab"
)

// relay lets programs in one network namespace reach a server in another, with no link
// between the two: it listens on loopback here and connects there.
type relay struct {
	listener net.Listener
	to       *lab.Namespace
	address  string

	mu     sync.Mutex
	closed bool
	conns  map[net.Conn]struct{}
	done   sync.WaitGroup
}

// newRelay listens on address in the namespace here and relays to the same address in
// the namespace there.
func newRelay(here, there *lab.Namespace, address string) (*relay, error) {
	r := &relay{to: there, address: address, conns: map[net.Conn]struct{}{}}
	err := here.Do(func() (err error) {
		r.listener, err = net.Listen("tcp", address)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("relay: %w", err)
	}
	r.done.Go(r.accept)
	return r, nil
}

func (r *relay) accept() {
	for {
		near, err := r.listener.Accept()
		if err != nil {
			return // closed
		}
		r.done.Go(func() { r.serve(near) })
	}
}

func (r *relay) serve(near net.Conn) {
	far, err := dialIn(context.Background(), r.to, r.address)
	if err != nil {
		near.Close()
		return
	}
	if !r.track(near, far) {
		return
	}
	var copies sync.WaitGroup
	oneWay := func(to, from net.Conn) {
		_, _ = io.Copy(to, from)
		_ = to.(*net.TCPConn).CloseWrite()
	}
	copies.Go(func() { oneWay(far, near) })
	copies.Go(func() { oneWay(near, far) })
	copies.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range []net.Conn{near, far} {
		delete(r.conns, c)
		c.Close()
	}
}

// track remembers connections to be closed with the relay; false if that is closed.
func (r *relay) track(conns ...net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range conns {
		if r.closed {
			c.Close()
			continue
		}
		r.conns[c] = struct{}{}
	}
	return !r.closed
}

// close ends the relay and its connections.
func (r *relay) close() error {
	err := r.listener.Close()
	r.mu.Lock()
	r.closed = true
	for c := range r.conns {
		c.Close()
	}
	r.mu.Unlock()
	r.done.Wait()
	return err
}
