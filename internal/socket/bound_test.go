// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// TestBoundPort connects two sockets, both bound to one port, to two addresses of a Service with one endpoint. With
// translation both connect, as the second gets another port on the way. So the programs leave them alone: here,
// where nothing translates, there is no route.
func TestBoundPort(t *testing.T) {
	w := serve(t, 1, nil)
	w.check(w.client.Do(func() error {
		for _, to := range []netip.AddrPort{frontends[0], frontends[2]} {
			s, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(s) // both are open at the end
			if err := unix.SetsockoptInt(s, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
				return err
			}
			if err := unix.Bind(s, &unix.SockaddrInet4{Port: 5555}); err != nil {
				return err
			}
			err = unix.Connect(s, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())})
			if !errors.Is(err, unix.EHOSTUNREACH) {
				t.Errorf("connect to %s: %v", to, err)
			}
		}
		return nil
	}))
	w.direct(&w.client.Machine, true)
}
