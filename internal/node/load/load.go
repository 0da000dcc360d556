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
	New  int // connections made between the last two updates
}

// Watcher counts connections of one network namespace. It is not safe for concurrent use.
//
// While it exists, the kernel reports each translated connection twice: when it begins and
// when it ends (CONFIG_NF_CONNTRACK_EVENTS). A filter in the kernel discards all other events.
type Watcher struct {
	events *netlink.Conn
	raw    syscall.RawConn
	table  *ctnetlink.Conn

	open    map[uint32]Key // by conntrack ID
	loads   map[Key]Load
	missing bool // events were lost, or the table has not been read yet
	buffer  []byte
}

// eventBuffer is the requested size of the socket's receive queue, in bytes: some 8,000 events.
const eventBuffer = 8 << 20

// Watch starts to count in the network namespace of a file descriptor, or in the calling
// thread's if netns is 0. It needs CAP_NET_ADMIN there.
func Watch(netns int) (*Watcher, error) {
	events, err := sock.Dial(unix.NETLINK_NETFILTER, "conntrack", netlink.Config{NetNS: netns})
	if err != nil {
		return nil, err
	}
	w := &Watcher{events: events, missing: true, buffer: make([]byte, 64<<10)}
	if w.raw, err = events.SyscallConn(); err == nil {
		err = events.SetReadBuffer(eventBuffer)
	}
	if err == nil {
		err = events.SetBPF(filter)
	}
	for _, group := range []uint32{unix.NFNLGRP_CONNTRACK_NEW, unix.NFNLGRP_CONNTRACK_UPDATE, unix.NFNLGRP_CONNTRACK_DESTROY} {
		if err == nil {
			err = events.JoinGroup(group)
		}
	}
	if err == nil {
		w.table, err = ctnetlink.Dial(netns)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("conntrack events: %w", err), events.Close())
	}
	return w, nil
}

// Close stops counting.
func (w *Watcher) Close() error { return errors.Join(w.events.Close(), w.table.Close()) }

// Of returns a backend's load as of the last update.
func (w *Watcher) Of(k Key) Load { return w.loads[k] }

// Update reads the events since the last update. The first one reads the conntrack table, and
// so does one that finds that events were lost.
func (w *Watcher) Update(ctx context.Context) error {
	for k, l := range w.loads {
		if l.Open == 0 {
			delete(w.loads, k)
		} else if l.New > 0 {
			w.loads[k] = Load{Open: l.Open}
		}
	}
	if w.missing {
		if err := w.readTable(ctx); err != nil {
			return err
		}
	}
	return w.readEvents()
}

// readTable reads the table. Events about its entries may still be in the queue. They change
// nothing that the table has shown already.
func (w *Watcher) readTable(ctx context.Context) error {
	w.open, w.loads = map[uint32]Key{}, map[Key]Load{}
	a := netlink.NewAttributeEncoder()
	a.Bytes(nl.CTA_STATUS, binary.BigEndian.AppendUint32(nil, ctnetlink.StatusDNAT))
	a.Bytes(ctnetlink.StatusMask, binary.BigEndian.AppendUint32(nil, ctnetlink.StatusDNAT)) // Linux 5.15
	attributes, err := a.Encode()
	if err != nil {
		return err
	}
	err = w.table.Dump(ctx, unix.AF_UNSPEC, attributes, func(data []byte) {
		if e, ok := parse(data); ok && e.translated && !e.ended {
			w.begin(e, 0)
		}
	})
	if err != nil {
		return fmt.Errorf("count connections: %w", err)
	}
	w.missing = false
	return nil
}

// readEvents reads the events that are in the queue.
func (w *Watcher) readEvents() error {
	var failed error
	err := w.raw.Read(func(fd uintptr) bool {
		for {
			n, _, err := unix.Recvfrom(int(fd), w.buffer, unix.MSG_DONTWAIT)
			switch err {
			case nil:
				w.event(w.buffer[:n])
			case unix.EINTR:
			case unix.ENOBUFS:
				w.missing = true
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
func (w *Watcher) event(b []byte) {
	if len(b) < unix.NLMSG_HDRLEN {
		return
	}
	typ, flags := binary.NativeEndian.Uint16(b[4:]), binary.NativeEndian.Uint16(b[6:])
	e, ok := parse(b[unix.NLMSG_HDRLEN:])
	switch {
	case !ok:
	case typ == ctnetlink.MsgDelete || e.ended:
		w.end(e.id)
	case flags&unix.NLM_F_CREATE != 0:
		w.begin(e, 1)
	}
}

// begin counts a connection, of which made are new.
func (w *Watcher) begin(e entry, made int) {
	if _, known := w.open[e.id]; known {
		return
	}
	w.open[e.id] = e.key
	l := w.loads[e.key]
	l.Open++
	l.New += made
	w.loads[e.key] = l
}

// end stops counting a connection.
func (w *Watcher) end(id uint32) {
	if k, known := w.open[id]; known {
		delete(w.open, id)
		l := w.loads[k]
		l.Open--
		w.loads[k] = l
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
