// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// listen makes a stream socket accept connections on addr.
func (s *socket) listen(addr netip.AddrPort) error {
	s.listens.Store(true)
	// A port whose last connections are in TIME_WAIT can be used again.
	if err := s.setInt(unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return os.NewSyscallError("setsockopt SO_REUSEADDR", err)
	}
	if err := s.bind(addr); err != nil {
		return os.NewSyscallError("bind", err)
	}
	// The kernel bounds the backlog by net.core.somaxconn.
	return os.NewSyscallError("listen", s.control(func(fd int) error { return unix.Listen(fd, 65535) }))
}
