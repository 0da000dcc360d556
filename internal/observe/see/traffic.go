// SPDX-License-Identifier: Apache-2.0

package see

import (
	"context"
	"encoding/binary"
	"errors"
	"maps"
	"net/netip"
	"sync"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/collect"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/fastpath/flows"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/ctnetlink"
	"golang.org/x/sys/unix"
)

// Total counts the connections to a Service port, those on the fast path included, since the
// counting began. Packets and bytes are of both directions, from the IP header on.
type Total struct {
	Connections uint64 `json:"connections"` // that began
	Packets     uint64 `json:"packets"`
	Bytes       uint64 `json:"bytes"`
}

func (t *Total) add(o Total) {
	t.Connections += o.Connections
	t.Packets += o.Packets
	t.Bytes += o.Bytes
}

// Counted is the totals of a Service port and their growth.
type Counted struct {
	Total
	Since time.Time `json:"since"` // when the counting began
	// The rates are per second, since an earlier question at least rateAfter ago. They are unknown
	// at first.
	ConnectionRate *float64 `json:"connectionsPerSecond,omitempty"`
	ByteRate       *float64 `json:"bytesPerSecond,omitempty"`
	// Accounting says that conntrack counts packets and bytes (net.netfilter.nf_conntrack_acct).
	Accounting bool `json:"accounting"`
	Lost       bool `json:"lost,omitempty"` // the kernel discarded events, so the totals are too low
}

// tally is the totals of a frontend.
type tally struct {
	Total
	sample                   Total // at the time sampled
	connectionRate, byteRate float64
	// backends is nil unless a question named the Service.
	backends map[netip.AddrPort]*tally
	measured bool // the rates of backends
}

func (t *tally) measure(took time.Duration) {
	t.connectionRate = float64(t.Connections-t.sample.Connections) / took.Seconds()
	t.byteRate = float64(t.Bytes-t.sample.Bytes) / took.Seconds()
	t.sample = t.Total
	for _, b := range t.backends {
		b.measure(took)
	}
	t.measured = t.backends != nil
}

func (c *Counted) add(t *tally) {
	c.Total.add(t.Total)
	if c.ConnectionRate != nil {
		*c.ConnectionRate += t.connectionRate
	}
	if c.ByteRate != nil {
		*c.ByteRate += t.byteRate
	}
}

func (c *Counted) merge(o *Counted) {
	c.Total.add(o.Total)
	c.Since, c.Accounting, c.Lost = o.Since, o.Accounting, o.Lost
	c.ConnectionRate, c.ByteRate = sum(c.ConnectionRate, o.ConnectionRate), sum(c.ByteRate, o.ByteRate)
}

// rateAfter is the shortest time over which rates are measured.
const rateAfter = time.Second

// Recent is the age up to which an answer may take connections from a walk that another question has
// caused: a page that is read and metrics that are scraped, each 15 s, need one walk together.
const Recent = 8 * time.Second

// traffic counts connections while somebody asks for them. Each connection is counted when it ends,
// from the kernel's event about that, and when the kernel walks its table for a question, as far as it has
// come. So a packet costs nothing, and a connection one event.
type traffic struct {
	mu      sync.Mutex
	events  *ctnetlink.Events // nil while nobody asks
	table   *flows.Conn
	ipvs    bool // it translates connections, too
	since   time.Time
	asked   time.Time
	sampled time.Time

	rated   bool                            // rates have been measured
	refused map[desired.FrontendKey]uint64  // rejected packets by destination, at the time sampled
	refusal map[desired.FrontendKey]float64 // rejected packets a second, if there were any
	round   bool                            // alternates with each walk
	counted map[uint32]counted              // what has been counted of existing connections, by conntrack ID
	totals  map[desired.FrontendKey]*tally
	lost    bool // the kernel discarded events

	walked   time.Time // when existing was complete; zero if it is not
	existing map[pair]existing
}

type counted struct {
	flows.Count
	round bool
}

// pair is where connections go. It has no pointers, which saves the garbage collector's time.
type pair struct {
	frontend, backend desired.Backend
	desired.Protocol
}

func (p *pair) key() desired.FrontendKey {
	return desired.FrontendKey{AddrPort: netip.AddrPortFrom(p.frontend.Addr(), p.frontend.Port()), Protocol: p.Protocol}
}

// existing counts connections that the last walk met.
type existing struct {
	connections, offloaded, unanswered uint32
	bytes                              uint64
}

func (e existing) with(f *flows.Flow) existing {
	e.connections++
	if f.Offloaded {
		e.offloaded++
	}
	if !f.Answered {
		e.unanswered++
	}
	e.bytes += f.Bytes()
	return e
}

// recent reports whether the last walk is not older than that, and another one would not be the first to measure rates.
func (t *traffic) recent(age time.Duration) bool {
	return !t.walked.IsZero() && time.Since(t.walked) <= age && (t.rated || time.Since(t.sampled) < rateAfter)
}

// read counts the connections that have ended, and those that exist unless enough says that the last walk is
// enough. Then it calls use, in which t.existing has the connections of the last walk, and t.totals those
// of all destinations that had any; use may delete some of these. Its argument returns what the totals of a port
// begin with. rejected are the numbers of rejected packets now, from which a walk measures the rates in t.refusal.
func (t *traffic) read(ctx context.Context, ipvs bool, enough func() bool, rejected map[desired.FrontendKey]uint64, use func(zero func() *Counted) error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	first := t.events == nil
	if first {
		if err := t.start(); err != nil {
			return err
		}
	}
	t.asked, t.ipvs = time.Now(), ipvs
	if err := t.drain(); err != nil {
		return errors.Join(err, t.stop())
	}
	if !enough() {
		err := t.walk(ctx, !first)
		if err != nil && first { // existing connections would be taken for new ones
			return errors.Join(err, t.stop())
		}
		if err != nil {
			return err
		}
		if first {
			maps.Copy(t.refused, rejected)
		}
		t.measure(rejected)
	}
	accounting := Accounts()
	return use(func() *Counted {
		c := &Counted{Since: t.since, Accounting: accounting, Lost: t.lost}
		if t.rated {
			if c.ConnectionRate = new(float64); accounting {
				c.ByteRate = new(float64)
			}
		}
		return c
	})
}

// walk counts the connections that exist. Those that are not known yet are new, if countNew is set.
func (t *traffic) walk(ctx context.Context, countNew bool) error {
	t.walked = time.Time{}
	clear(t.existing)
	t.round = !t.round
	each := t.table.ByNAT
	if t.ipvs {
		each = t.table.Translated
	}
	err := each(ctx, func(f *flows.Flow) {
		to := pair{desired.NewBackend(f.Destination), desired.NewBackend(f.Backend), f.Protocol}
		t.existing[to] = t.existing[to].with(f)
		t.count(f, countNew)
		t.counted[f.ID] = counted{f.Both(), t.round}
	})
	// Of connections that ended during the dump, there are events now. Those that are neither in
	// the dump nor in an event ended without one.
	if err = errors.Join(err, t.drain()); err != nil {
		return err
	}
	maps.DeleteFunc(t.counted, func(_ uint32, c counted) bool { return c.round != t.round })
	t.walked = time.Now()
	return nil
}

// start begins to count, from 0.
func (t *traffic) start() (err error) {
	if t.events, err = ctnetlink.Listen(0, nil, unix.NFNLGRP_CONNTRACK_DESTROY); err != nil {
		return err
	}
	if t.table, err = flows.New(0); err != nil {
		return errors.Join(err, t.stop())
	}
	t.since, t.sampled = time.Now(), time.Now()
	t.rated, t.lost = false, false
	t.counted, t.totals = map[uint32]counted{}, map[desired.FrontendKey]*tally{}
	t.refused, t.refusal = map[desired.FrontendKey]uint64{}, map[desired.FrontendKey]float64{}
	t.existing = map[pair]existing{}
	go t.run(t.events)
	return nil
}

// stop ends the counting until the next question.
func (t *traffic) stop() (err error) {
	if t.events != nil {
		err = t.events.Close()
	}
	if t.table != nil {
		err = errors.Join(err, t.table.Close())
	}
	t.events, t.table, t.counted, t.totals, t.refused, t.refusal = nil, nil, nil, nil, nil, nil
	t.walked, t.existing = time.Time{}, nil
	return err
}

// end stops the counting and its goroutine, which else goes on for some minutes.
func (t *traffic) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	_ = t.stop()
}

// run empties the queue of events until nobody asks any more.
func (t *traffic) run(events *ctnetlink.Events) {
	const drainPeriod = 250 * time.Millisecond // between two looks at the queue of events
	tick := time.NewTicker(drainPeriod)
	defer tick.Stop()
	for range tick.C {
		t.mu.Lock()
		stopped := t.events != events
		const askAgain = 5 * time.Minute // after the last question, counting ends
		if !stopped && (t.drain() != nil || time.Since(t.asked) > askAgain) {
			_ = t.stop() // the next question begins again
			stopped = true
		}
		t.mu.Unlock()
		if stopped {
			return
		}
	}
}

// drain counts the connections that have ended.
func (t *traffic) drain() error {
	var f flows.Flow
	lost, err := t.events.Read(func(m []byte) {
		if binary.NativeEndian.Uint16(m[4:]) == ctnetlink.MsgDelete && f.Parse(m[unix.NLMSG_HDRLEN:]) && f.Destination != f.Backend && (f.NAT || t.ipvs) {
			t.count(&f, true)
			delete(t.counted, f.ID)
		}
	})
	t.lost = t.lost || lost
	return err
}

// count adds what is new of a connection.
func (t *traffic) count(f *flows.Flow, countNew bool) {
	before, known := t.counted[f.ID]
	if !known && !countNew {
		return
	}
	now := f.Both()
	more := Total{Packets: max(now.Packets, before.Packets) - before.Packets, Bytes: max(now.Bytes, before.Bytes) - before.Bytes}
	if !known {
		more.Connections = 1
	}
	to := collect.Entry(t.totals, f.Frontend())
	to.add(more)
	if to.backends != nil {
		collect.Entry(to.backends, f.Backend).add(more)
	}
}

// measure measures the rates.
func (t *traffic) measure(rejected map[desired.FrontendKey]uint64) {
	took := time.Since(t.sampled)
	if took < rateAfter {
		return
	}
	t.sampled, t.rated = time.Now(), true
	for _, n := range t.totals {
		n.measure(took)
	}
	clear(t.refusal)
	for k, n := range rejected {
		if before := t.refused[k]; n > before {
			t.refusal[k] = float64(n-before) / took.Seconds()
		}
		t.refused[k] = n // one that is missing keeps its number: a dump may lack elements
	}
}
