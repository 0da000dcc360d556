// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/mdlayher/netlink"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/ctnetlink"
	"golang.org/x/sys/unix"
)

// Conn is a netlink socket to the conntrack table of one network namespace. It
// is for one goroutine at a time.
type Conn struct {
	sock *netlink.Conn
	raw  syscall.RawConn

	able map[family]abilities

	// Observe, if set, is called after each search for stale entries of a family.
	// It is set before the first use.
	Observe func(f desired.Family, took time.Duration, deleted int)

	// unfiltered asks for a family's whole table, as from a kernel without
	// filters.
	unfiltered bool
}

// New opens a socket in the network namespace that the file descriptor names,
// or in the calling thread's when netns is 0. To use it takes CAP_NET_ADMIN there
// and CONFIG_NF_CT_NETLINK, which kernels load on demand; without it [Conn.Clean]
// fails with EINVAL.
func New(netns int) (*Conn, error) {
	sock, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{
		NetNS: netns,
		// As much as the kernel puts into one datagram of a dump is 32 KiB.
		MessageBufferSize: 64 << 10,
	})
	if err != nil {
		return nil, fmt.Errorf("netlink socket to conntrack: %w", err)
	}
	for _, o := range []netlink.ConnOption{netlink.ExtendedAcknowledge, netlink.CapAcknowledge} {
		if err := sock.SetOption(o, true); err != nil {
			return nil, errors.Join(fmt.Errorf("netlink socket option: %w", err), sock.Close())
		}
	}
	raw, err := sock.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, sock.Close())
	}
	return &Conn{sock: sock, raw: raw, able: map[family]abilities{}}, nil
}

// Close closes the socket.
func (c *Conn) Close() error { return c.sock.Close() }

// Stats tell what [Conn.Clean] did.
type Stats struct {
	Dumps   int // how often the kernel walked its table, without the probe
	Entries int // entries that it reported
	Deleted int // of these, those that were stale and still there
}

// Clean deletes the entries that flows describe. Those of TCP are left alone,
// whatever flows say.
//
// Flows are in the order in which they were found: a [desired.StaleFlows] with
// Only replaces what came before it about the same frontend, as an endpoint
// that was gone then may serve again.
//
// When something fails, what can be done is done all the same; Stats are right
// in any case.
func (c *Conn) Clean(flows []desired.StaleFlows) (Stats, error) { return c.run(plan(flows)) }

// run deletes what searches find.
func (c *Conn) run(searches []*search) (Stats, error) {
	var stats Stats
	var failed []error
	for _, s := range searches {
		start, before := time.Now(), stats.Deleted
		stale, err := c.find(s, &stats)
		if err == nil {
			err = c.delete(stale, &stats)
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("conntrack entries of %v: %w", s.family, err))
		}
		if c.Observe != nil {
			f := desired.IPv4
			if s.family == ipv6 {
				f = desired.IPv6
			}
			c.Observe(f, time.Since(start), stats.Deleted-before)
		}
	}
	return stats, errors.Join(failed...)
}

// find returns the requests that delete what is stale.
func (c *Conn) find(s *search, stats *Stats) (stale []netlink.Message, err error) {
	var e entry
	var bad error
	visit := func(data []byte) {
		stats.Entries++
		if e.parse(data) && s.stale(&e) {
			m, err := e.deletion()
			if err != nil {
				bad = err
				return
			}
			stale = append(stale, m)
		}
	}
	if !c.unfiltered {
		err := c.findFiltered(s, stats, visit)
		if err == nil || !refused(err) {
			return stale, errors.Join(err, bad)
		}
		stale = nil
	}
	// Whatever it is that this kernel does not like of the filter.
	stats.Dumps++
	err = c.dump(s.family, nil, visit)
	return stale, errors.Join(err, bad)
}

// findFiltered calls visit with what the kernel's filter lets through.
func (c *Conn) findFiltered(s *search, stats *Stats, visit func(data []byte)) error {
	able := c.abilities(s.family)
	for _, f := range s.filter.parts(able) {
		attributes, err := f.attributes(s.family, able)
		if err != nil {
			return fmt.Errorf("filter: %w", err)
		}
		stats.Dumps++
		if err := c.dump(s.family, attributes, visit); err != nil {
			return err
		}
	}
	return nil
}

// abilities are what the kernel can do in a family. It is asked when there is
// something to be found for the first time. Where it cannot be asked, little is
// taken for granted, and it will be asked again.
func (c *Conn) abilities(f family) abilities {
	able, known := c.able[f]
	if known {
		return able
	}
	able, err := c.probe(f)
	if err != nil {
		return abilities{}
	}
	c.able[f] = able
	return able
}

// refused says that the kernel understood a request and does not do such things.
func refused(err error) bool {
	return errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ERANGE)
}

// dump has the kernel report entries and calls visit with each.
func (c *Conn) dump(f family, attributes []byte, visit func(data []byte)) error {
	c.drain()
	_, err := c.sock.Send(netlink.Message{
		Header: netlink.Header{Type: ctnetlink.MsgGet, Flags: netlink.Request | netlink.Dump},
		Data:   append(header(f), attributes...),
	})
	if err != nil {
		return fmt.Errorf("request for a dump: %w", err)
	}
	for m, err := range c.sock.ReceiveIter() {
		if err != nil {
			return fmt.Errorf("dump: %w", err)
		}
		visit(m.Data)
	}
	return nil
}

// deleteAtOnce is how many deletions go to the kernel in one message. The
// answers to all of them have to fit the socket's queue.
const deleteAtOnce = 64

// delete sends deletions. An entry that has gone by itself is no error; of
// others only the first is returned.
func (c *Conn) delete(deletions []netlink.Message, stats *Stats) error {
	var first error
	failed := 0
	c.drain()
	for batch := range slices.Chunk(deletions, deleteAtOnce) {
		if _, err := c.sock.SendMessages(batch); err != nil {
			return fmt.Errorf("request for %d deletions: %w", len(batch), err)
		}
		for range batch {
			switch err := c.acknowledgement(); {
			case err == nil:
				stats.Deleted++
			case errors.Is(err, unix.ENOENT):
			case isAnswer(err):
				failed++
				if first == nil {
					first = err
				}
			default:
				return fmt.Errorf("answer to a deletion: %w", err)
			}
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d were not deleted, the first: %w", failed, len(deletions), first)
	}
	return nil
}

// acknowledgement reads the answer to one request; they come one by one.
func (c *Conn) acknowledgement() error {
	_, err := c.sock.Receive()
	return err
}

// isAnswer says that an error is the kernel's answer to a request rather than a
// failure to read it.
func isAnswer(err error) bool {
	var op *netlink.OpError
	return errors.As(err, &op) && op.Sequence != 0
}

// drain throws away what an exchange that failed half-way has left, so that it is
// not taken for an answer to the next.
func (c *Conn) drain() {
	var buf [1]byte // the rest of a datagram is dropped
	// An error is the next exchange's to tell.
	_ = c.raw.Read(func(fd uintptr) bool {
		for {
			_, _, err := unix.Recvfrom(int(fd), buf[:], unix.MSG_DONTWAIT)
			if err != nil && err != unix.EINTR && err != unix.ENOBUFS {
				return true
			}
		}
	})
}
