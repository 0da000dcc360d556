// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"
)

type endpoint struct {
	name    string // as in the configuration's name of the address
	address string
	reason  string // of the Event when it fails
	handler http.Handler
	tls     *tls.Config // nil for plain HTTP

	reported string // the last failure that was reported
}

// serve serves one address until ctx ends or, with HardFail, until the first failure.
func (s *Server) serve(ctx context.Context, e *endpoint) error {
	for {
		err := s.once(ctx, e)
		if ctx.Err() != nil {
			return nil
		}
		err = fmt.Errorf("%s address %s: %w", e.name, e.address, err)
		if err.Error() == e.reported {
			klog.FromContext(ctx).V(2).Info("Still cannot serve", "endpoint", e.name, "reason", e.reported)
		} else {
			e.reported = err.Error()
			s.options.Events.Warning(e.reason, e.reported)
		}
		if s.options.HardFail {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(s.retry):
		}
	}
}

// once listens and serves until ctx ends or it fails.
func (s *Server) once(ctx context.Context, e *endpoint) error {
	l, err := s.options.Listen("tcp", e.address)
	if err != nil {
		return err
	}
	if e.tls != nil {
		if _, err := e.tls.GetCertificate(nil); err != nil {
			return errors.Join(err, l.Close())
		}
		l = tls.NewListener(l, e.tls)
	}
	log := klog.FromContext(ctx)
	if e.reported != "" {
		log.Info("Serving again", "endpoint", e.name, "address", l.Addr())
		e.reported = ""
	}
	log.V(3).Info("Serving", "endpoint", e.name, "address", l.Addr())
	const headerTimeout = 10 * time.Second // how long a client may take to send the request header
	const idleTimeout = 2 * time.Minute    // ends a connection without a request: clients cannot keep many of them
	server := &http.Server{
		Handler:           e.handler,
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		BaseContext:       func(net.Listener) context.Context { return klog.NewContext(context.Background(), log) },
	}
	Bound(server)
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		const shutdownTimeout = time.Second // how long to wait for active requests at the end
		last, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
		defer cancel()
		if server.Shutdown(last) != nil {
			server.Close()
		}
	})
	err = server.Serve(l)
	if !stop() { // ctx has ended
		<-stopped
		return nil
	}
	return errors.Join(err, server.Close())
}

// maxConnections is how many connections an endpoint has. Each takes about 16 kB.
const maxConnections = 256

// Bound has a server end a connection for each beyond maxConnections: the one that has waited for a
// request for the longest, or if none waits, been answered for the longest.
func Bound(s *http.Server) {
	type conn struct {
		net.Conn
		waits bool
	}
	var (
		mu  sync.Mutex
		all []conn // the longest first
	)
	s.ConnState = func(c net.Conn, state http.ConnState) {
		mu.Lock()
		defer mu.Unlock()
		all = slices.DeleteFunc(all, func(x conn) bool { return x.Conn == c })
		if state == http.StateClosed || state == http.StateHijacked {
			return
		}
		all = append(all, conn{c, state != http.StateActive})
		if len(all) > maxConnections {
			i := max(0, slices.IndexFunc(all, func(x conn) bool { return x.waits }))
			// TLS would send an alert, for which a client that does not read could have us wait.
			if c, ok := all[i].Conn.(*tls.Conn); ok {
				c.NetConn().Close()
			} else {
				all[i].Close()
			}
			all = slices.Delete(all, i, i+1)
		}
	}
}
