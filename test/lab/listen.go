// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// listen makes a stream socket accept connections on addr.
func (s *socket) listen(addr netip.AddrPort) error {
	// A port whose last connections are in TIME_WAIT can be had again.
	if err := s.setInt(unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		s.listens.Store(true)
		return os.NewSyscallError("setsockopt SO_REUSEADDR", err)
	}
	if err := s.bind(addr); err != nil {
		s.listens.Store(true)
		return os.NewSyscallError("bind", err)
	}
	// The kernel bounds the backlog by net.core.somaxconn.
	s.listens.Store(true)
	return os.NewSyscallError("listen", s.control(func(fd int) error { return unix.Listen(fd, 65535) }))
}
