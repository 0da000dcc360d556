// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/cluster"
	"github.com/slipstream-proxy/slipstream/test/lab"
	"golang.org/x/sys/unix"
)

// podsAddress is the machine of all pods, on the fabric.
var podsAddress = netip.MustParsePrefix("192.168.100.210/24")

// pods is a machine that has the addresses of all pods. Its one server answers a connection
// with the four bytes of the address that it was made to, and closes it.
//
// It is one thread with blocking system calls, so that as little as possible of the measured
// time is the benchmark's own.
type pods struct {
	*lab.Host
	listener int
	done     chan struct{}
}

func newPods(ctx context.Context, l *lab.Lab) (*pods, error) {
	host, err := l.Host("pods", podsAddress)
	if err != nil {
		return nil, err
	}
	if err := host.RouteToPods(); err != nil { // to the clients' pods
		return nil, err
	}
	// All of the range is local (AnyIP); the routes to the clients are more specific.
	if _, err := host.Run(ctx, "ip", "route", "add", "local", cluster.IPv4.Pods.String(), "dev", "lo"); err != nil {
		return nil, err
	}
	p := &pods{Host: host, done: make(chan struct{})}
	if err := host.Do(func() (err error) { p.listener, err = listen(); return err }); err != nil {
		return nil, fmt.Errorf("pods: %w", err)
	}
	go func() {
		defer close(p.done)
		_ = host.Do(func() error { p.serve(); return nil })
	}()
	return p, nil
}

func listen() (fd int, err error) {
	if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return 0, err
	}
	if err := errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
		unix.Bind(fd, &unix.SockaddrInet4{Port: cluster.TargetPort}),
		unix.Listen(fd, 1024),
	); err != nil {
		unix.Close(fd)
		return 0, err
	}
	return fd, nil
}

// serve answers until close.
func (p *pods) serve() {
	for {
		fd, _, err := unix.Accept4(p.listener, unix.SOCK_CLOEXEC)
		switch {
		case errors.Is(err, unix.EINTR) || errors.Is(err, unix.ECONNABORTED):
			continue
		case err != nil:
			return // it was shut down
		}
		if local, err := unix.Getsockname(fd); err == nil {
			a := local.(*unix.SockaddrInet4).Addr
			_, _ = unix.Write(fd, a[:])
		}
		unix.Close(fd)
	}
}

// close ends the server. The machine ends with its lab.
func (p *pods) close() {
	_ = unix.Shutdown(p.listener, unix.SHUT_RDWR)
	<-p.done
	unix.Close(p.listener)
}
