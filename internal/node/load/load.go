// SPDX-License-Identifier: Apache-2.0

// Package load counts the connections that the backends of Services have, from the kernel's
// conntrack events.
package load

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"time"

	"github.com/mdlayher/netlink"
	"github.com/slipstream-proxy/slipstream/internal/collect"
	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/ctnetlink"
	"golang.org/x/sys/unix"
)

// key identifies a backend, or a destination of clients.
type key struct {
	desired.Protocol
	desired.Backend
}

// Counter counts connections of one network namespace. It is not safe for concurrent use.
//
// From its first Update on, the kernel reports when a translated connection begins and each time
// that its state changes while it is closed (CONFIG_NF_CONNTRACK_EVENTS). A filter in the kernel
// discards all other events.
type Counter struct {
	netns  int
	ipvs   bool
	counts bool              // loads; otherwise, it only watches handshakes
	events *ctnetlink.Events // nil while it does not count
	table  *ctnetlink.Conn

	open    map[uint32]connection // by conntrack ID
	loads   map[key]*tally        // of backends that have, or lately had, connections
	changed map[key]bool          // destinations of clients, since the last call of Changed
	started time.Time
	now     time.Duration // since then, of the last update
	forgot  time.Duration // when loads were last forgotten
	missing bool          // events were lost, or the table has not been read yet
	early   int           // number of connections that were found in the table, before any event
	read    time.Time
	took    time.Duration // for the last reading

	watch   func(desired.FrontendKey, desired.Backend) string
	waiting map[uint32]bool         // watched connections without an answer, for less than unanswered
	met     map[watched]*handshakes // watched backends that lately had answers or failures

	silent error     // why the kernel reports no connections; nil if it does
	asked  time.Time // when silent was set
}

type connection struct {
	key
	frontend  desired.Backend // the client's destination
	early     bool            // found in the table, before any event
	begun     time.Duration   // Counter.now when it was found
	namespace string          // if its handshake is watched
}

// tally is a backend's load.
type tally struct {
	desired.Load
	at time.Duration // time of the sums
}

// since brings the sums of a load forward to a time. They fade to 0.
func (t *tally) since(now time.Duration) {
	if now > t.at {
		keep := math.Exp((t.at - now).Seconds() / desired.LoadMemory.Seconds())
		t.Held = faded(t.Held*keep) + float64(t.Open)*held(now-t.at)
		t.Begun = faded(t.Begun * keep)
		t.Ended = faded(t.Ended * keep)
		t.Failed = faded(t.Failed * keep)
		t.at = now
	}
}

func faded(sum float64) float64 {
	if sum < 1e-9 {
		return 0
	}
	return sum
}

// held is how much a connection that has been open for so long, until now, counts in Held.
func held(d time.Duration) float64 {
	return -desired.LoadMemory.Seconds() * math.Expm1(-d.Seconds()/desired.LoadMemory.Seconds())
}

// readAgain is the time after which the table is read again while there are connections that were
// found in it. The kernel reports no events about a connection that is older than the first
// socket for them (Linux 5.19).
const readAgain = 10 * time.Second

// New returns a Counter for the network namespace of a file descriptor, or for the calling thread's if netns is 0. It needs
// CAP_NET_ADMIN there. With ipvs, it also counts what IPVS translates, and the kernel reports all connections.
func New(netns int, ipvs bool) *Counter { return &Counter{netns: netns, ipvs: ipvs} }

// start opens the sockets.
func (c *Counter) start() (err error) {
	c.events, err = ctnetlink.Listen(c.netns, filter(c.ipvs, c.counts),
		unix.NFNLGRP_CONNTRACK_NEW, unix.NFNLGRP_CONNTRACK_UPDATE, unix.NFNLGRP_CONNTRACK_DESTROY)
	if err == nil {
		c.table, err = ctnetlink.Dial(c.netns)
	}
	if err != nil {
		return errors.Join(err, c.Stop())
	}
	c.started = time.Now()
	c.clear()
	return nil
}

// clear has the next Update begin with the table.
func (c *Counter) clear() {
	c.open, c.loads, c.changed, c.early, c.missing = map[uint32]connection{}, map[key]*tally{}, map[key]bool{}, 0, true
	c.waiting, c.met = map[uint32]bool{}, map[watched]*handshakes{}
	c.read = time.Time{}
}

// eventsParameter says whether it does. It exists once nf_conntrack is there.
const eventsParameter = "net.netfilter.nf_conntrack_events"

// Ask returns an error if the kernel does not report connections that begin in a network namespace, that of New.
func Ask(netns int) error {
	return dataplane.Inside(netns, func() error {
		value, err := os.ReadFile("/proc/sys/" + strings.ReplaceAll(eventsParameter, ".", "/"))
		switch {
		case errors.Is(err, os.ErrNotExist):
			return errors.New("the kernel has no conntrack events (CONFIG_NF_CONNTRACK_EVENTS)")
		case err != nil:
			return fmt.Errorf("%s: %w", eventsParameter, err)
		case strings.TrimSpace(string(value)) == "0":
			return fmt.Errorf("%s is 0: the kernel does not report connections", eventsParameter)
		}
		return nil
	})
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
	*c = Counter{netns: c.netns, ipvs: c.ipvs}
	return errors.Join(errs...)
}

// Of returns a backend's load as of the last update.
func (c *Counter) Of(p desired.Protocol, b desired.Backend) desired.Load {
	t := c.loads[key{p, b}]
	if t == nil {
		return desired.Load{}
	}
	t.since(c.now)
	return t.Load
}

// Changed returns the destinations of clients, before translation, to which connections have
// begun or ended since the last call.
func (c *Counter) Changed() (all []desired.FrontendKey) {
	for k := range c.changed {
		all = append(all, k.destination())
	}
	clear(c.changed)
	return all
}

// Update reads the events since the last update. The first one reads the conntrack table, and
// so does one that finds that events were lost. Connections are taken to begin and end when an
// update finds that. After an error, no backend has a load.
//
// A function returns the namespace of a backend that clients of a frontend reach, if its handshakes are watched, or "".
// Without loads, only connections of these count, until they are answered, which takes fewer events.
func (c *Counter) Update(ctx context.Context, loads bool, watch func(desired.FrontendKey, desired.Backend) string) error {
	var err error
	if c.counts != loads {
		err = c.Stop()
	}
	c.counts, c.watch = loads, watch
	err = errors.Join(err, c.update(ctx))
	if err != nil {
		c.clear()
	}
	return err
}

func (c *Counter) update(ctx context.Context) error {
	if c.events == nil {
		if err := c.start(); err != nil {
			return err
		}
	}
	const askAgain = time.Second // when the kernel is asked again whether it reports connections
	if time.Since(c.asked) >= askAgain {
		c.silent, c.asked = Ask(c.netns), time.Now()
	}
	if c.silent != nil {
		return c.silent
	}
	c.now = time.Since(c.started)
	if c.now-c.forgot >= desired.LoadMemory {
		for k, t := range c.loads { // those that have become insignificant are forgotten
			if t.since(c.now); t.Open == 0 && t.Begun+t.Ended < 0.1 {
				delete(c.loads, k)
			}
		}
		c.forgot = c.now
	}
	since := time.Since(c.read) // of a large table, so that reading takes 1 % of the time, or 10 % while events are lost
	if c.counts && (c.missing && since >= 10*c.took || c.early > 0 && since >= max(readAgain, 100*c.took)) {
		if err := c.readTable(ctx); err != nil {
			return err
		}
	}
	lost, err := c.events.Read(c.event)
	c.missing = c.missing || lost
	if lost && !c.counts {
		c.clear() // answers may be among the events
	}
	return err
}

// readTable reads the table. Events about its entries may still be in the queue. They change
// nothing that the table has shown already.
func (c *Counter) readTable(ctx context.Context) error {
	former, start := c.open, time.Now()
	for _, x := range former {
		c.count(x, -1)
	}
	c.open = map[uint32]connection{}
	clear(c.waiting) // their answers may be among the events that were lost
	a := netlink.NewAttributeEncoder()
	if !c.ipvs {
		ctnetlink.WithStatus(a, ctnetlink.StatusDNAT, false)
	}
	attributes, err := a.Encode()
	if err != nil {
		return err
	}
	err = c.table.Dump(ctx, unix.AF_UNSPEC, attributes, func(data []byte) {
		if e, id, x, ok := c.parse(data); ok && !ended(&e) {
			x.early = true
			if known := former[id]; known.key == x.key && known.frontend == x.frontend {
				x = known
			}
			c.begin(x, id)
		}
	})
	if err != nil {
		return fmt.Errorf("count connections: %w", err)
	}
	c.missing, c.read, c.took = false, time.Now(), time.Since(start)
	return nil
}

// event processes a message.
func (c *Counter) event(b []byte) {
	typ, flags := binary.NativeEndian.Uint16(b[4:]), binary.NativeEndian.Uint16(b[6:])
	e, id, x, ok := c.parse(b[unix.NLMSG_HDRLEN:])
	answered := e.Status&ctnetlink.StatusSeenReply != 0 // the backend has sent a packet
	switch {
	case !ok:
	case typ == ctnetlink.MsgDelete || ended(&e):
		if c.waiting[id] && (typ == ctnetlink.MsgDelete || answered) { // a reset deletes the entry
			c.fail(id)
		}
		c.end(id, answered && e.TCPState != reset)
	case flags&unix.NLM_F_CREATE != 0:
		if x.namespace = c.watch(key{x.Protocol, x.frontend}.destination(), x.Backend); x.namespace == "" && !c.counts {
			return
		}
		if t := c.begin(x, id); t != nil {
			t.Begun++
			if x.namespace != "" {
				c.waiting[id] = true
			}
		}
	case e.TCPState == synRecv || x.Protocol == desired.UDP && answered:
		if c.answer(id); !c.counts {
			c.end(id, true)
		}
	}
}

// begin starts to count a connection, and returns the tally of its backend; nil if it counts already.
func (c *Counter) begin(x connection, id uint32) *tally {
	if _, known := c.open[id]; known {
		return nil
	}
	c.open[id] = x
	return c.count(x, 1)
}

// end stops counting a connection. The time for which it was open counts if it was served: one that
// was refused or reset took no time, which does not make its backend a fast one. Clients that reset do so at all backends.
func (c *Counter) end(id uint32, served bool) {
	x, known := c.open[id]
	if !known {
		return
	}
	delete(c.open, id)
	delete(c.waiting, id)
	t := c.count(x, -1)
	if served {
		t.Ended++
	} else {
		t.Held = faded(t.Held - held(c.now-x.begun))
		t.Failed++
	}
}

// count adds n to the number of open connections of a backend.
func (c *Counter) count(x connection, n int) *tally {
	t := collect.Entry(c.loads, x.key)
	t.since(c.now)
	t.Open += n
	if x.early {
		c.early += n
	}
	c.changed[key{x.Protocol, x.frontend}] = true
	return t
}

// TCP states of conntrack (enum tcp_conntrack): the first one after an end has closed a
// connection, and the one after a reset. finWait to reset are all states of ended connections.
const (
	synRecv = 2 // after the answer
	finWait = 4
	lastAck = 6
	reset   = 8
)

// ended reports whether one end has closed or reset a connection.
func ended(e *ctnetlink.Entry) bool { return e.TCPState >= finWait && e.TCPState <= reset }

// parse returns what an event or a dump says of a translated connection, and the connection as one that begins.
func (c *Counter) parse(data []byte) (e ctnetlink.Entry, id uint32, x connection, ok bool) {
	if !e.Parse(data) || e.ID == nil || e.Status&ctnetlink.StatusDNAT == 0 && (!c.ipvs || e.Original.Dst == e.Reply.Src) {
		return e, 0, x, false
	}
	backend := key{desired.Protocol(e.Reply.Protocol), desired.NewBackend(e.Reply.Src)}
	return e, binary.NativeEndian.Uint32(e.ID), connection{key: backend, frontend: desired.NewBackend(e.Original.Dst), begun: c.now}, true
}
