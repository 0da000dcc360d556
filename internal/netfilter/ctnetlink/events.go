// SPDX-License-Identifier: Apache-2.0

package ctnetlink

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/mdlayher/netlink"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/sock"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Events is a queue of the kernel's events about the connections of one network namespace
// (CONFIG_NF_CONNTRACK_EVENTS). The kernel reports no events about a connection that is older
// than the first socket for them (Linux 5.19). It is not safe for concurrent use.
type Events struct {
	sock   *netlink.Conn
	raw    syscall.RawConn
	buffer []byte
}

// eventBuffer is the requested size of the socket's receive queue, in bytes: some 8,000 events.
const eventBuffer = 8 << 20

// Listen starts to queue the events of multicast groups that a filter, if not nil, passes. The
// namespace is that of Dial.
func Listen(netns int, filter []bpf.RawInstruction, groups ...uint32) (*Events, error) {
	s, err := sock.Dial(unix.NETLINK_NETFILTER, "conntrack", netlink.Config{NetNS: netns})
	if err != nil {
		return nil, err
	}
	e := &Events{sock: s, buffer: make([]byte, 64<<10)}
	if e.raw, err = s.SyscallConn(); err == nil {
		err = s.SetReadBuffer(eventBuffer)
	}
	if err == nil && filter != nil {
		err = s.SetBPF(filter)
	}
	for _, group := range groups {
		if err == nil {
			err = s.JoinGroup(group)
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("conntrack events: %w", err), s.Close())
	}
	return e, nil
}

// Close closes the socket.
func (e *Events) Close() error { return e.sock.Close() }

// Read calls visit with each message in the queue, with its netlink header. It does not wait.
// The message is valid only during the call. lost says that the queue was full, so that
// the kernel discarded events.
func (e *Events) Read(visit func(message []byte)) (lost bool, err error) {
	var failed error
	err = e.raw.Read(func(fd uintptr) bool {
		for {
			n, err := unix.Read(int(fd), e.buffer) // does not wait, and allocates no address
			switch err {
			case nil:
				if n >= unix.NLMSG_HDRLEN {
					visit(e.buffer[:n])
				}
			case unix.EINTR:
			case unix.ENOBUFS:
				lost = true
			case unix.EAGAIN:
				return true
			default:
				failed = fmt.Errorf("conntrack events: %w", err)
				return true
			}
		}
	})
	return lost, errors.Join(failed, err)
}
