// SPDX-License-Identifier: Apache-2.0

package nfnl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// receiveBuffer is the size of one read, in bytes. The kernel fills a dump's
// messages up to what the reader has shown it can take (32 KiB at the most).
const receiveBuffer = 64 << 10

// socketBuffer is the size asked for the socket's queue of answers, in bytes.
const socketBuffer = 8 << 20

// Conn is a netlink socket to nf_tables. It is for one goroutine.
type Conn struct {
	sock *netlink.Conn
	raw  syscall.RawConn
	rbuf []byte
	wbuf int // size of the socket's send queue, in bytes
	seq  uint32

	// unread says that answers of an exchange that was given up may still
	// be in the queue.
	unread bool
}

// Dial opens a socket in the network namespace that the file descriptor names,
// or in the calling thread's when netns is 0. It needs CAP_NET_ADMIN there.
func Dial(netns int) (*Conn, error) {
	sock, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: netns})
	if err != nil {
		return nil, fmt.Errorf("netlink socket to netfilter: %w", err)
	}
	c := &Conn{sock: sock, rbuf: make([]byte, receiveBuffer)}
	for _, o := range []netlink.ConnOption{netlink.ExtendedAcknowledge, netlink.CapAcknowledge} {
		if err := sock.SetOption(o, true); err != nil {
			return nil, errors.Join(fmt.Errorf("netlink socket option: %w", err), sock.Close())
		}
	}
	if err := sock.SetReadBuffer(socketBuffer); err != nil {
		return nil, errors.Join(fmt.Errorf("netlink socket receive buffer: %w", err), sock.Close())
	}
	if c.raw, err = sock.SyscallConn(); err != nil {
		return nil, errors.Join(err, sock.Close())
	}
	return c, nil
}

// Close closes the socket.
func (c *Conn) Close() error { return c.sock.Close() }

// ErrGeneration says that somebody changed the ruleset since the generation
// that a batch was made for.
var ErrGeneration = errors.New("the ruleset has changed since it was read")

// Commit sends the batch as one transaction. When it returns nil the kernel
// uses the new content; on an error (a *[BatchError] when the kernel refused
// it) nothing has changed. A generation other than 0 makes the commit fail
// with [ErrGeneration] unless the ruleset is still of that generation
// (NFNL_BATCH_GENID, Linux 4.18).
//
// The kernel works on a transaction inside the system call that sends it, so
// what it has to say is there to read once the call is back.
func (c *Conn) Commit(b *Batch, generation uint32) error {
	if b.Empty() {
		return nil
	}
	c.drain()
	wire := b.finish(generation)
	if len(wire) > c.wbuf {
		// The whole batch has to fit the socket's send queue.
		if err := c.sock.SetWriteBuffer(len(wire) + 64<<10); err != nil {
			return fmt.Errorf("netlink send buffer of %d bytes: %w", len(wire), err)
		}
		c.wbuf = len(wire)
	}
	if err := c.send(wire); err != nil {
		return fmt.Errorf("sending a batch of %d bytes: %w", len(wire), err)
	}
	var failed *BatchError
	done := false
	for {
		n, err := c.receive(unix.MSG_DONTWAIT)
		if errors.Is(err, unix.EAGAIN) {
			break
		}
		if err != nil {
			c.unread = true
			return fmt.Errorf("reading the kernel's answer to a batch: %w", err)
		}
		eachMessage(c.rbuf[:n], func(h header, payload []byte) bool {
			if h.typ != unix.NLMSG_ERROR {
				return true
			}
			e := parseError(h, payload)
			switch {
			case e.errno == 0:
				done = done || h.seq == uint32(len(b.messages))
			case failed == nil:
				failed = b.failure(h.seq, e)
			}
			return true
		})
	}
	switch {
	case failed != nil && generation != 0 && failed.Errno == unix.ERESTART:
		return ErrGeneration
	case failed != nil:
		return failed
	case !done:
		return errors.New("the kernel did not acknowledge a batch")
	}
	return nil
}

// finish closes the batch and returns it as sent. The last message asks for an
// acknowledgement.
func (b *Batch) finish(generation uint32) []byte {
	b.endRun()
	last := b.messages[len(b.messages)-1]
	flags := binary.NativeEndian.Uint16(b.buf[last+6:])
	binary.NativeEndian.PutUint16(b.buf[last+6:], flags|unix.NLM_F_ACK)
	b.batchMark(unix.NFNL_MSG_BATCH_END)
	if generation == 0 {
		return b.buf
	}
	// The begin mark, with the generation as an attribute, takes the old one's place.
	var mark Batch
	mark.batchMark(unix.NFNL_MSG_BATCH_BEGIN)
	plain := len(mark.buf)
	mark.buf.be32(unix.NFNL_BATCH_GENID, generation)
	binary.NativeEndian.PutUint32(mark.buf, uint32(len(mark.buf)))
	grow := len(mark.buf) - plain
	b.buf = append(mark.buf, b.buf[plain:]...)
	for i := range b.messages {
		b.messages[i] += grow
	}
	return b.buf
}

// drain throws away what an exchange that was given up has left.
func (c *Conn) drain() {
	for c.unread {
		_, err := c.receive(unix.MSG_DONTWAIT)
		c.unread = err == nil || errors.Is(err, unix.ENOBUFS)
	}
}

func (c *Conn) send(wire []byte) error {
	var sent error
	err := c.raw.Write(func(fd uintptr) bool {
		sent = unix.Sendto(int(fd), wire, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
		return sent != unix.EAGAIN && sent != unix.EINTR
	})
	return errors.Join(err, sent)
}

// receive reads one datagram into rbuf.
func (c *Conn) receive(flags int) (n int, err error) {
	var got error
	err = c.raw.Read(func(fd uintptr) bool {
		for {
			n, _, got = unix.Recvfrom(int(fd), c.rbuf, flags)
			if got != unix.EINTR {
				break
			}
		}
		return flags&unix.MSG_DONTWAIT != 0 || got != unix.EAGAIN
	})
	return n, errors.Join(err, got)
}

// header is what matters of struct nlmsghdr.
type header struct {
	typ, flags uint16
	seq        uint32
}

// eachMessage calls visit for the messages of one datagram until it returns
// false.
func eachMessage(b []byte, visit func(header, []byte) bool) {
	for len(b) >= nlmsgHeaderLen {
		n := int(binary.NativeEndian.Uint32(b))
		if n < nlmsgHeaderLen || n > len(b) {
			return
		}
		h := header{binary.NativeEndian.Uint16(b[4:]), binary.NativeEndian.Uint16(b[6:]), binary.NativeEndian.Uint32(b[8:])}
		if !visit(h, b[nlmsgHeaderLen:n]) {
			return
		}
		b = b[min(align(n), len(b)):]
	}
}
