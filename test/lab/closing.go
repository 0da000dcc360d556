// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"io"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// endAtOnce ends what the socket does before its descriptor is closed. To close
// the descriptor is not always enough: while this process starts a child, the
// child holds copies of all descriptors from fork until some time in exec, and
// with them a listener would go on to accept and a connection to hold its port.
func (s *socket) endAtOnce() {
	_ = s.control(func(fd int) error {
		switch {
		case s.listens.Load() && s.proto == SCTP:
			return unix.Listen(fd, 0) // the way to stop an SCTP listener
		case s.proto != TCP:
			return nil
		case s.abort.Load():
			return disconnect(fd)
		}
		return unix.Shutdown(fd, unix.SHUT_RDWR)
	})
}

// disconnect resets a TCP connection, by a connect to no address (AF_UNSPEC).
func disconnect(fd int) error {
	var sa unix.RawSockaddr
	_, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&sa)), unsafe.Sizeof(sa))
	if errno != 0 {
		return errno
	}
	return nil
}

// closeNow closes c while this process is not about to fork; see endAtOnce. A
// short while in the child's exec remains, which cannot be excluded from here.
func closeNow(c io.Closer) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return c.Close()
}
