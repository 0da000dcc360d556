// SPDX-License-Identifier: Apache-2.0

// Package load counts the connections that the backends of Services have, from the kernel's
// conntrack events.
package load

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/mdlayher/netlink"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/ctnetlink"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/sock"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Key identifies a backend.
type Key struct {
	Protocol desired.Protocol
	Backend  desired.Backend
}

// Load is a backend's connections that this node has translated.
type Load struct {
	Open int // connections, until one end closes or resets them, or conntrack forgets them
	New  int // of these, those made since the update before the last
}

// Counter counts connections of one network namespace. It is not safe for concurrent use.
//
// From its first Update on, the kernel reports when a translated connection begins and each time
// that its state changes while it is closed (CONFIG_NF_CONNTRACK_EVENTS). A filter in the kernel
// discards all other events.
type Counter struct {
	netns  int
	events *netlink.Conn // nil while it does not count
	raw    syscall.RawConn
	table  *ctnetlink.Conn

	open    map[uint32]connection // by conntrack ID
	loads   map[Key]Load
	updates uint32
	missing bool // events were lost, or the table has not been read yet
	early   int  // number of connections that were found in the table
	read    time.Time
	buffer  []byte
}

type connection struct {
	Key
	update uint32 // number of the update that found it
	early  bool   // found in the table
}

// readAgain is the time after which the table is read again while there are connections that were
// found in it. The kernel reports no events about a connection that is older than the first
// socket for them (Linux 5.19).
const readAgain = 10 * time.Second

// New returns a Counter for the network namespace of a file descriptor, or for the calling
// thread's if netns is 0. It needs CAP_NET_ADMIN there.
func New(netns int) *Counter { return &Counter{netns: netns} }

// eventBuffer is the requested size of the socket's receive queue, in bytes: some 8,000 events.
const eventBuffer = 8 << 20

// start opens the sockets.
func (c *Counter) start() (err error) {
	if c.events, err = sock.Dial(unix.NETLINK_NETFILTER, "conntrack", netlink.Config{NetNS: c.netns}); err != nil {
		return err
	}
	if c.raw, err = c.events.SyscallConn(); err == nil {
		err = c.events.SetReadBuffer(eventBuffer)
	}
	if err == nil {
		err = c.events.SetBPF(filter)
	}
	for _, group := range []uint32{unix.NFNLGRP_CONNTRACK_NEW, unix.NFNLGRP_CONNTRACK_UPDATE, unix.NFNLGRP_CONNTRACK_DESTROY} {
		if err == nil {
			err = c.events.JoinGroup(group)
		}
	}
	if err == nil {
		c.table, err = ctnetlink.Dial(c.netns)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("conntrack events: %w", err), c.Stop())
	}
	c.missing, c.buffer = true, make([]byte, 64<<10)
	return nil
}

// Stop stops counting until the next Update, which then reads the conntrack table.
func (c *Counter) Stop() error {
	var errs []error
	if c.events != nil {
		errs = append(errs, c.events.Close())
	}
	if c.table != nil {
		errs = append(errs, c.table.Close())
	}
	*c = Counter{netns: c.netns}
	return errors.Join(errs...)
}

// Of returns a backend's load as of the last update.
func (c *Counter) Of(k Key) Load { return c.loads[k] }

// Loads is a [desired.Loads].
func (c *Counter) Loads(p desired.Protocol, b desired.Backend) (open, recent int) {
	l := c.loads[Key{p, b}]
	return l.Open, l.New
}

// Update reads the events since the last update. The first one reads the conntrack table, and
// so does one that finds that events were lost.
func (c *Counter) Update(ctx context.Context) error {
	if c.events == nil {
		if err := c.start(); err != nil {
			return err
		}
	}
	c.updates++
	for k, l := range c.loads {
		if l.Open == 0 {
			delete(c.loads, k)
		} else if l.New > 0 {
			c.loads[k] = Load{Open: l.Open}
		}
	}
	if c.missing || c.early > 0 && time.Since(c.read) >= readAgain {
		if err := c.readTable(ctx); err != nil {
			return err
		}
	}
	return c.readEvents()
}

// readTable reads the table. Events about its entries may still be in the queue. They change
// nothing that the table has shown already.
func (c *Counter) readTable(ctx context.Context) error {
	c.open, c.loads, c.early = map[uint32]connection{}, map[Key]Load{}, 0
	c.missing = true // until it has succeeded
	a := netlink.NewAttributeEncoder()
	a.Bytes(nl.CTA_STATUS, binary.BigEndian.AppendUint32(nil, ctnetlink.StatusDNAT))
	a.Bytes(ctnetlink.StatusMask, binary.BigEndian.AppendUint32(nil, ctnetlink.StatusDNAT)) // Linux 5.15
	attributes, err := a.Encode()
	if err != nil {
		return err
	}
	err = c.table.Dump(ctx, unix.AF_UNSPEC, attributes, func(data []byte) {
		if e, ok := parse(data); ok && e.translated && !e.ended {
			c.begin(connection{e.key, c.updates - 1, true}, e.id)
		}
	})
	if err != nil {
		return fmt.Errorf("count connections: %w", err)
	}
	c.missing, c.read = false, time.Now()
	return nil
}

// readEvents reads the events that are in the queue.
func (c *Counter) readEvents() error {
	var failed error
	err := c.raw.Read(func(fd uintptr) bool {
		for {
			n, _, err := unix.Recvfrom(int(fd), c.buffer, unix.MSG_DONTWAIT)
			switch err {
			case nil:
				c.event(c.buffer[:n])
			case unix.EINTR:
			case unix.ENOBUFS:
				c.missing = true
			case unix.EAGAIN:
				return true
			default:
				failed = fmt.Errorf("conntrack events: %w", err)
				return true
			}
		}
	})
	return errors.Join(failed, err)
}

// event processes a message.
func (c *Counter) event(b []byte) {
	if len(b) < unix.NLMSG_HDRLEN {
		return
	}
	typ, flags := binary.NativeEndian.Uint16(b[4:]), binary.NativeEndian.Uint16(b[6:])
	e, ok := parse(b[unix.NLMSG_HDRLEN:])
	switch {
	case !ok:
	case typ == ctnetlink.MsgDelete || e.ended:
		c.end(e.id)
	case flags&unix.NLM_F_CREATE != 0:
		c.begin(connection{e.key, c.updates, false}, e.id)
	}
}

// begin starts to count a connection.
func (c *Counter) begin(x connection, id uint32) {
	if _, known := c.open[id]; !known {
		c.open[id] = x
		c.add(x, 1)
	}
}

func (c *Counter) add(x connection, n int) {
	l := c.loads[x.Key]
	l.Open += n
	if x.update == c.updates {
		l.New += n
	}
	if x.early {
		c.early += n
	}
	c.loads[x.Key] = l
}

// end stops counting a connection.
func (c *Counter) end(id uint32) {
	if x, known := c.open[id]; known {
		delete(c.open, id)
		c.add(x, -1)
	}
}

// entry is what an event or a dump says of a connection.
type entry struct {
	id         uint32
	key        Key
	translated bool
	ended      bool // one end has closed or reset it
}

// TCP states of conntrack (enum tcp_conntrack): the first one after an end has closed a
// connection, and the one after a reset. finWait to reset are all states of ended connections.
const (
	finWait = 4
	reset   = 8
)

func parse(data []byte) (e entry, ok bool) {
	const header = 4 // struct nfgenmsg
	if len(data) < header {
		return e, false
	}
	hasID := false
	for typ, b := range nfnl.Attributes(data[header:]) {
		switch {
		case typ == nl.CTA_TUPLE_REPLY:
			var t ctnetlink.Tuple
			t, ok = ctnetlink.ParseTuple(b)
			e.key = Key{desired.Protocol(t.Protocol), desired.NewBackend(t.Src)}
		case typ == nl.CTA_STATUS && len(b) == 4:
			e.translated = binary.BigEndian.Uint32(b)&ctnetlink.StatusDNAT != 0
		case typ == nl.CTA_ID && len(b) == 4:
			e.id, hasID = binary.NativeEndian.Uint32(b), true
		case typ == nl.CTA_PROTOINFO:
			if s := tcpState(b); s >= finWait && s <= reset {
				e.ended = true
			}
		}
	}
	return e, ok && hasID
}

func tcpState(protoinfo []byte) (state uint8) {
	for typ, b := range nfnl.Attributes(protoinfo) {
		if typ != nl.CTA_PROTOINFO_TCP {
			continue
		}
		for typ, b := range nfnl.Attributes(b) {
			if typ == nl.CTA_PROTOINFO_TCP_STATE && len(b) == 1 {
				state = b[0]
			}
		}
	}
	return state
}
