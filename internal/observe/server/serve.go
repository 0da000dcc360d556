// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"k8s.io/klog/v2"
)

const (
	// retryPeriod is how long after a failure an address is tried again
	// (kube-proxy's).
	retryPeriod = 5 * time.Second
	// lastAnswers is how long answers that have begun may take when the end has
	// come.
	lastAnswers = time.Second
	// requestWithin is how long a client may take to say what it wants.
	requestWithin = 10 * time.Second
)

// endpoint is an address and who answers there.
type endpoint struct {
	name    string // as in the configuration's name of the address
	address string
	reason  string // of the Event when it fails
	handler http.Handler

	reported string // the last failure that was reported
}

// serve answers on one address until ctx ends, or with HardFail until the first
// failure.
func (s *Server) serve(ctx context.Context, e *endpoint) error {
	for {
		err := s.once(ctx, e)
		if ctx.Err() != nil {
			return nil
		}
		err = fmt.Errorf("%s address %s: %w", e.name, e.address, err)
		s.report(e, err)
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

// report tells of a failure, once until it is another one.
func (s *Server) report(e *endpoint, err error) {
	if err.Error() == e.reported {
		klog.V(2).ErrorS(err, "Still cannot serve", "endpoint", e.name)
		return
	}
	e.reported = err.Error()
	if s.options.Events != nil {
		s.options.Events.Warning(e.reason, err.Error())
		return
	}
	klog.ErrorS(err, "Cannot serve", "endpoint", e.name)
}

// once listens and answers until ctx ends or it fails.
func (s *Server) once(ctx context.Context, e *endpoint) error {
	l, err := s.options.Listen("tcp", e.address)
	if err != nil {
		return err
	}
	if e.reported != "" {
		klog.InfoS("Serving after all", "endpoint", e.name, "address", l.Addr())
		e.reported = ""
	}
	klog.V(3).InfoS("Serving", "endpoint", e.name, "address", l.Addr())
	server := &http.Server{Handler: e.handler, ReadHeaderTimeout: requestWithin}
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		last, cancel := context.WithTimeout(context.Background(), lastAnswers)
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
