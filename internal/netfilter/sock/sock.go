// SPDX-License-Identifier: Apache-2.0

// Package sock has what netlink sockets to different parts of the kernel share.
package sock

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/mdlayher/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Dial opens a netlink socket to a part of the kernel; errors name that part. The kernel describes refusals (Linux 4.12)
// and does not repeat the refused request in them. Tests replace Dial by sockets to a kernel of their own.
var Dial = func(protocol int, to string, c netlink.Config) (*netlink.Conn, error) {
	s, err := netlink.Dial(protocol, &c)
	if err != nil {
		return nil, fmt.Errorf("netlink socket to %s: %w", to, err)
	}
	for _, o := range []netlink.ConnOption{netlink.ExtendedAcknowledge, netlink.CapAcknowledge} {
		if err := s.SetOption(o, true); err != nil {
			return nil, errors.Join(fmt.Errorf("option of the netlink socket to %s: %w", to, err), s.Close())
		}
	}
	return s, nil
}

// Namespace is a network namespace, given by a file descriptor, as package vishvananda/netlink names it. 0 is
// the calling thread's.
func Namespace(fd int) netns.NsHandle {
	if fd == 0 {
		return netns.None()
	}
	return netns.NsHandle(fd)
}

// Drain discards the messages in a socket, and reports whether there were some. Those that the kernel has
// dropped for want of space count too.
func Drain(raw syscall.RawConn) (some bool, err error) {
	err = raw.Control(func(fd uintptr) {
		var buf [1]byte // the rest of a message is dropped
		for {
			_, _, err := unix.Recvfrom(int(fd), buf[:], unix.MSG_DONTWAIT)
			if err != nil && err != unix.EINTR && err != unix.ENOBUFS {
				return
			}
			some = true
		}
	})
	return some, err
}

// Receive reads one datagram. If it may not wait and there is none, the error is EAGAIN.
func Receive(raw syscall.RawConn, buffer []byte, wait bool) (n int, err error) {
	var got error
	err = raw.Read(func(fd uintptr) bool {
		for {
			n, got = unix.Read(int(fd), buffer) // the socket does not block
			if got != unix.EINTR {
				break
			}
		}
		return !wait || got != unix.EAGAIN
	})
	return n, errors.Join(err, got)
}

// Send sends one datagram, which consists of parts.
func Send(raw syscall.RawConn, parts ...[]byte) error {
	var sent error
	err := raw.Write(func(fd uintptr) bool {
		for {
			_, sent = unix.Writev(int(fd), parts)
			if sent != unix.EINTR {
				return sent != unix.EAGAIN
			}
		}
	})
	return errors.Join(err, sent)
}

// Header has the used fields of struct nlmsghdr.
type Header struct {
	Type, Flags uint16
	Sequence    uint32
}

// Messages walks the messages of one datagram, with their data. One that is truncated, of which the kernel sends none,
// is the last, and has the zero Header.
func Messages(b []byte) iter.Seq2[Header, []byte] {
	return func(yield func(Header, []byte) bool) {
		for len(b) > 0 {
			n := 0
			if len(b) >= unix.NLMSG_HDRLEN {
				n = int(binary.NativeEndian.Uint32(b))
			}
			if n < unix.NLMSG_HDRLEN || n > len(b) {
				yield(Header{}, nil)
				return
			}
			h := Header{binary.NativeEndian.Uint16(b[4:]), binary.NativeEndian.Uint16(b[6:]), binary.NativeEndian.Uint32(b[8:])}
			if !yield(h, b[unix.NLMSG_HDRLEN:n]) {
				return
			}
			b = b[min((n+unix.NLMSG_ALIGNTO-1)&^(unix.NLMSG_ALIGNTO-1), len(b)):]
		}
	}
}

// Commit sends a change to the kernel, which send does by one system call or one command. Tests replace Commit to make
// the kernel fail, or to end the process, at each change in turn.
var Commit = func(send func() error) error { return send() }

// Exchange runs f, in which reads and writes of the socket fail when ctx ends. It returns ctx's
// error then, and answers may be left in the socket.
func Exchange(ctx context.Context, s *netlink.Conn, f func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := s.SetDeadline(time.Time{}); err != nil {
		return err
	}
	expired := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = s.SetDeadline(time.Unix(1, 0))
		close(expired)
	})
	err := f()
	if !stop() {
		<-expired // else it would meet the next exchange
	}
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// maxInFlight is how many requests one system call sends. The kernel's answers to all of
// them, if all fail, fit into the socket's receive buffer.
const maxInFlight = 256

// sequence is the number of the last request of Execute.
var sequence atomic.Uint32

// Execute carries out requests in order. It calls failed for each one that the kernel refuses,
// with its index, and goes on with the next. An error is a failure of the socket, or ctx's; it
// is unknown then how many requests were carried out.
func Execute(ctx context.Context, s *netlink.Conn, requests []netlink.Message, failed func(i int, err error)) error {
	raw, err := s.SyscallConn()
	var buffer []byte
	for first := 0; err == nil && first < len(requests); first += maxInFlight {
		chunk := requests[first:min(first+maxInFlight, len(requests))]
		chunk[len(chunk)-1].Header.Flags |= netlink.Acknowledge
		last := sequence.Add(uint32(len(chunk)))
		start := last - uint32(len(chunk)-1)
		buffer = buffer[:0]
		for i, r := range chunk {
			buffer = binary.NativeEndian.AppendUint32(buffer, uint32(unix.NLMSG_HDRLEN+len(r.Data)))
			buffer = binary.NativeEndian.AppendUint16(buffer, uint16(r.Header.Type))
			buffer = binary.NativeEndian.AppendUint16(buffer, uint16(r.Header.Flags))
			buffer = binary.NativeEndian.AppendUint32(buffer, start+uint32(i))
			buffer = append(append(buffer, 0, 0, 0, 0), r.Data...)
			buffer = append(buffer, make([]byte, -len(buffer)&(unix.NLMSG_ALIGNTO-1))...)
		}
		err = Exchange(ctx, s, func() error {
			if err := Commit(func() error { return Send(raw, buffer) }); err != nil {
				return err
			}
			return answers(s, start, last, func(i int, err error) { failed(first+i, err) })
		})
	}
	return err
}

// answers reads until the last of the requests from start on is answered.
func answers(s *netlink.Conn, start, last uint32, failed func(i int, err error)) error {
	for {
		got, err := s.Receive()
		seq := uint32(0)
		switch op, is := errors.AsType[*netlink.OpError](err); {
		case is && op.Sequence != 0:
			seq = uint32(op.Sequence)
			if seq-start <= last-start { // otherwise of an exchange that has ended early
				failed(int(seq-start), op.Err)
			}
		case err != nil:
			return err
		case len(got) > 0:
			seq = got[0].Header.Sequence
		}
		if seq == last {
			return nil
		}
	}
}
