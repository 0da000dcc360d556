// SPDX-License-Identifier: Apache-2.0

package nfnl

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"

	"github.com/mdlayher/netlink"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/sock"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// receiveBuffer is the size of one read, in bytes. The kernel fills the messages of a dump
// up to the size of previous reads (at most 32 KiB).
const receiveBuffer = 64 << 10

// Conn is a netlink socket to nf_tables. It is not safe for concurrent use.
type Conn struct {
	Dumps, Requests int // numbers of dumps, and of all requests that read, so far, for tests

	sock *netlink.Conn
	raw  syscall.RawConn
	rbuf []byte
	wbuf int // size of the socket's send queue, in bytes
	seq  uint32

	begin, end attrs    // memory for the marks of a transaction,
	wire       [][]byte // and for the list of its parts

	// unread says that answers of an aborted exchange may still be in the queue.
	unread bool

	commits *Commits
	netns   int
	group   *netlink.Conn // of Commits, if this connection has opened it
}

// Dial opens a socket in the network namespace of the file descriptor netns, or in the
// calling thread's if netns is 0. It needs CAP_NET_ADMIN there.
func Dial(netns int) (*Conn, error) {
	s, err := sock.Dial(unix.NETLINK_NETFILTER, "nf_tables", netlink.Config{NetNS: netns})
	if err != nil {
		return nil, err
	}
	c := &Conn{sock: s, rbuf: make([]byte, receiveBuffer), commits: new(Commits), netns: netns}
	const socketBuffer = 8 << 20 // the requested size of the socket's receive queue, in bytes
	if err := s.SetReadBuffer(socketBuffer); err != nil {
		return nil, errors.Join(fmt.Errorf("netlink socket receive buffer: %w", err), s.Close())
	}
	if c.raw, err = s.SyscallConn(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return c, nil
}

// Close closes the socket, and ends Watch.
func (c *Conn) Close() error {
	if c.group != nil {
		_ = c.group.Close()
	}
	return c.sock.Close()
}

// Settle waits until the kernel has freed the objects that committed transactions deleted in a network namespace (given
// as for Dial). The kernel frees them after a grace period, when no packet can use them. It waits for that when a
// netfilter socket is closed (nft_rcv_nl_event, Linux 5.12).
func Settle(netns int) error {
	conn, err := Dial(netns)
	if err != nil {
		return err
	}
	return conn.Close()
}

// ErrGeneration says that the ruleset no longer has the generation that a batch was made for.
var ErrGeneration = errors.New("the ruleset has changed since it was read")

// Commit sends batches, one after the other, as one transaction. If it returns nil, the transaction is in effect. After
// an error (a *[BatchError] if the kernel refused it), nothing has changed. If generation is not 0 and not the
// ruleset's [Conn.Generation], the commit fails with [ErrGeneration] (NFNL_BATCH_GENID, Linux 4.18).
//
// The kernel processes a transaction inside the system call that sends it, so all answers can be read without waiting.
func (c *Conn) Commit(generation uint32, batches ...*Batch) error {
	c.commits.mu.Lock()
	defer c.commits.mu.Unlock()
	if generation != 0 {
		generation = max(generation+c.commits.n, 1)
	}
	err := c.transact(generation, true, batches)
	if err == nil && !allEmpty(batches) {
		c.commits.n++
	}
	return err
}

func allEmpty(batches []*Batch) bool {
	return !slices.ContainsFunc(batches, func(b *Batch) bool { return !b.Empty() })
}

// DryRun checks whether the kernel would accept batches as one transaction. The kernel prepares the transaction and
// aborts it. The ruleset and its generation do not change, and no process is notified. The error is like Commit's,
// except that errors which the kernel detects by validating the whole table, such as a loop, are not found.
func (c *Conn) DryRun(batches ...*Batch) error { return c.transact(0, false, batches) }

// transact sends batches as one transaction. Without its end message, the kernel aborts it (as for "nft --check").
func (c *Conn) transact(generation uint32, commit bool, batches []*Batch) error {
	for _, b := range batches {
		if b.err != nil {
			return b.err
		}
	}
	if allEmpty(batches) {
		return nil
	}
	c.drain()
	wire, first, bytes := c.transaction(generation, batches)
	defer clear(wire) // frees batches
	if !commit {
		bytes -= len(wire[len(wire)-1])
		wire = wire[:len(wire)-1]
	}
	if bytes > c.wbuf {
		// The whole transaction has to fit into the socket's send queue.
		if err := c.sock.SetWriteBuffer(bytes + 64<<10); err != nil {
			return fmt.Errorf("netlink send buffer of %d bytes: %w", bytes, err)
		}
		c.wbuf = bytes
	}
	if commit {
		c.commits.leave()
	}
	if err := sock.Commit(func() error { return sock.Send(c.raw, wire...) }); err != nil {
		return fmt.Errorf("sending a batch of %d bytes: %w", bytes, err)
	}
	var failed *BatchError
	done, last := false, false // answers are in the order of messages: nothing follows that of the last one
	for !last {
		n, err := sock.Receive(c.raw, c.rbuf, false)
		if errors.Is(err, unix.EAGAIN) {
			break
		}
		if errors.Is(err, unix.ENOBUFS) {
			continue // the queue overflowed, but has the first errors
		}
		if err != nil {
			c.unread = true
			return fmt.Errorf("reading the kernel's answer to a batch: %w", err)
		}
		for h, payload := range sock.Messages(c.rbuf[:n]) {
			if h.Type != unix.NLMSG_ERROR {
				continue
			}
			e := parseError(h, payload)
			last = last || h.Sequence == c.seq
			switch {
			case e.errno == 0:
				done = done || h.Sequence == c.seq
			case failed == nil:
				failed = failure(batches, int(h.Sequence-first), e)
			}
		}
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

// transaction puts batches between the begin and end messages of a transaction, and numbers their messages, starting
// with first. The last message of the batches requests an acknowledgement.
func (c *Conn) transaction(generation uint32, batches []*Batch) (wire [][]byte, first uint32, bytes int) {
	begin, end := c.begin[:0], c.end[:0]
	begin.message(unix.NFNL_MSG_BATCH_BEGIN, 0, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)
	if generation != 0 {
		begin.be32(unix.NFNL_BATCH_GENID, generation)
	}
	end.message(unix.NFNL_MSG_BATCH_END, 0, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)
	for _, mark := range []attrs{begin, end} {
		binary.NativeEndian.PutUint32(mark, uint32(len(mark)))
	}
	wire = append(c.wire[:0], begin)
	first = c.seq + 1
	var last []byte
	for _, b := range batches {
		b.endRun()
		for _, at := range b.messages {
			c.seq++
			last = b.buf[at:]
			binary.NativeEndian.PutUint32(last[seqAt:], c.seq)
		}
		if len(b.buf) > 0 {
			wire = append(wire, b.buf)
		}
	}
	flags := binary.NativeEndian.Uint16(last[flagsAt:])
	binary.NativeEndian.PutUint16(last[flagsAt:], flags|unix.NLM_F_ACK)
	wire = append(wire, end)
	for _, part := range wire {
		bytes += len(part)
	}
	c.begin, c.end, c.wire = begin, end, wire
	return wire, first, bytes
}

// drain discards the remaining answers of an aborted exchange.
func (c *Conn) drain() {
	for c.unread {
		_, err := sock.Receive(c.raw, c.rbuf, false)
		c.unread = err == nil || errors.Is(err, unix.ENOBUFS)
	}
}

// Commits counts the transactions of connections to one network namespace, so that these can
// be distinguished from those of other programs. It is safe for concurrent use.
type Commits struct {
	mu sync.Mutex // held during commits, and while the generation is read
	n  uint32

	group *netlink.Conn // the socket of Watch; nil before
	told  chan struct{} // that Watch has returned; nil unless group has joined the multicast group
	seen  uint32        // the Generation at the last Watch; 0 after a transaction
}

// Commits returns the count that the connection's transactions are added to.
func (c *Conn) Commits() *Commits { return c.commits }

// Share makes the connection count its transactions with those of other connections to the
// same network namespace. It must be called before the first use.
func (c *Conn) Share(commits *Commits) { c.commits = commits }

// Generation returns the number of transactions of the network namespace's ruleset, without
// those that Commits counts: it changes when another program commits. It wraps and is never
// 0. While Watch would tell of a transaction, it is known without a request.
func (c *Conn) Generation() (uint32, error) {
	m := c.commits
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.told != nil {
		return m.seen, nil
	}
	return c.generation()
}

func (c *Conn) generation() (gen uint32, err error) {
	err = c.request(unix.NFT_MSG_GETGEN, 0, unix.AF_UNSPEC, nil, func(body []byte) {
		gen = be32(Attr(body, unix.NFTA_GEN_ID))
	})
	return max(gen-c.commits.n, 1), err
}

// NextGeneration returns the generation after one more transaction of another program.
func NextGeneration(generation uint32) uint32 { return max(generation+1, 1) }

// Watch returns a channel that is closed at the next transaction in the network namespace, of any program, or if it
// might miss one. It is nil if another program has committed since the last call, so what was read between two calls
// still holds. Only one of the connections that share their Commits may watch. The error is for good.
//
// While a program watches, the kernel describes all objects of a transaction: nft -f with 10,000 elements took 1.1 times
// as long, and iptables-nft-restore with 5,000 rules 1.2 times. So Watch leaves the multicast group before each
// transaction that Commits counts, and after the first one of another program.
func (c *Conn) Watch() (told <-chan struct{}, err error) {
	m := c.commits
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.group == nil {
		err = c.listen()
	}
	if err == nil && m.told == nil {
		err = m.group.JoinGroup(unix.NFNLGRP_NFTABLES)
	}
	if err != nil {
		return nil, fmt.Errorf("notifications of nf_tables: %w", err)
	}
	if m.told == nil {
		m.told = make(chan struct{})
	}
	generation, err := c.generation() // after joining, so that none is missed
	if err != nil || generation != m.seen {
		m.leave()
	}
	m.seen = generation
	return m.told, err
}

// listen leaves the group when the kernel has sent the end of a transaction, a message of its own, or has lost it (ENOBUFS).
func (c *Conn) listen() (err error) {
	if c.group, err = sock.Dial(unix.NETLINK_NETFILTER, "nf_tables", netlink.Config{NetNS: c.netns}); err != nil {
		return err
	}
	end := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWGEN))
	filter, _ := bpf.Assemble([]bpf.Instruction{
		bpf.LoadAbsolute{Off: 4, Size: 2}, bpf.JumpIf{Val: uint32(end), SkipFalse: 1}, bpf.RetConstant{Val: 1 << 16}, bpf.RetConstant{},
	})
	raw, err := c.group.SyscallConn()
	if err = errors.Join(err, c.group.SetBPF(filter)); err != nil {
		return err
	}
	m := c.commits
	m.group = c.group
	go func() {
		for err := error(nil); err == nil; {
			if _, err = sock.Receive(raw, make([]byte, 1), true); errors.Is(err, unix.ENOBUFS) { // the rest is dropped
				err = nil
			} else if err != nil {
				_ = m.group.Close() // so that joining again fails
			}
			m.mu.Lock()
			m.leave()
			m.mu.Unlock()
		}
	}()
	return nil
}

// leave leaves the group, and tells.
func (m *Commits) leave() {
	if m.told != nil {
		_ = m.group.LeaveGroup(unix.NFNLGRP_NFTABLES) // fails only if the socket is closed
		close(m.told)
		m.told, m.seen = nil, 0
	}
}

// Pieces is the approximate size of each transaction of CommitPieces, in bytes. Such a
// transaction fits into the processor's caches. Larger ones are not faster.
const Pieces = 128 << 10

// CommitPieces commits the messages that write adds to b, in many small transactions. Each is
// committed in the background, while write fills the batch for the next.
//
// This is faster than one large transaction and takes less memory: the kernel processes
// the elements of a transaction several times, and meanwhile resizes their hash tables on
// another processor. It is for content that no packet uses yet.
//
// After an error of [Conn.Commit] or of the context, earlier transactions remain in effect.
// Finally the batch is empty, but still counts its bytes and elements.
func (c *Conn) CommitPieces(ctx context.Context, b *Batch, write func()) error {
	var piece Batch
	last := make(chan error, 1) // the result of the transactions so far
	last <- nil
	b.spill = func() {
		err := <-last
		piece.Reset() // it has been committed
		b.buf, piece.buf = piece.buf, b.buf
		b.messages, piece.messages = piece.messages, b.messages
		b.err, piece.err = nil, b.err
		b.spilled += len(piece.buf)
		go func() {
			if err == nil {
				err = ctx.Err()
			}
			if err == nil {
				err = c.Commit(0, &piece)
			}
			last <- err
		}()
	}
	write()
	b.endRun()
	b.spill()
	b.spill = nil
	return <-last
}
