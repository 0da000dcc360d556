// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"

	"github.com/slipstream-proxy/slipstream/test/lab"
	"golang.org/x/sys/unix"
)

// Serve accepts TCP connections in a namespace, one after the other, has answer use each
// one's descriptor, and closes it, until stop is called. It is one thread with blocking
// system calls: a wait in Go's poller takes longer, and less evenly.
func Serve(ns *lab.Namespace, at netip.AddrPort, answer func(fd int)) (stop func(), err error) {
	family, address := Sockaddr(at)
	fd := -1
	err = ns.Do(func() (err error) {
		if fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		return errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1), unix.Bind(fd, address), unix.Listen(fd, 1024))
	})
	if err != nil {
		if fd >= 0 {
			unix.Close(fd)
		}
		return nil, fmt.Errorf("listen on %v: %w", at, err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		for {
			conn, _, err := unix.Accept4(fd, unix.SOCK_CLOEXEC)
			switch {
			case errors.Is(err, unix.EINTR) || errors.Is(err, unix.ECONNABORTED):
				continue
			case err != nil: // it was shut down
				return
			}
			answer(conn)
			unix.Close(conn)
		}
	}()
	return func() {
		_ = unix.Shutdown(fd, unix.SHUT_RDWR)
		<-done
		unix.Close(fd)
	}, nil
}

// Sockaddr is an address as system calls take it, and its family (AF_INET or AF_INET6).
func Sockaddr(a netip.AddrPort) (family int, address unix.Sockaddr) {
	if a.Addr().Is4() {
		return unix.AF_INET, &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return unix.AF_INET6, &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}
