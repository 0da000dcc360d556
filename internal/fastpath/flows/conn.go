// SPDX-License-Identifier: Apache-2.0

package flows

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/mdlayher/netlink"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/fastpath/ebpf"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/ctnetlink"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Conn reads the conntrack table of one network namespace. It is not safe for concurrent
// use.
type Conn struct {
	*ctnetlink.Conn
	netns int
}

// New opens a Conn, see [ctnetlink.Dial].
func New(netns int) (*Conn, error) {
	conn, err := ctnetlink.Dial(netns)
	return &Conn{conn, netns}, err
}

// List returns the offloaded connections by destination, backend and source. The kernel walks its whole table for it.
// Before Linux 5.15 it reports all connections, and List removes the others.
func (c *Conn) List(ctx context.Context) (all []Flow, err error) {
	err = c.Each(ctx, func(f *Flow) { all = append(all, *f) })
	slices.SortFunc(all, func(a, b Flow) int {
		return cmp.Or(
			a.Destination.Compare(b.Destination), cmp.Compare(a.Protocol, b.Protocol),
			a.Backend.Compare(b.Backend), a.Source.Compare(b.Source),
		)
	})
	return all, err
}

// Each calls visit with every offloaded connection, in no order. The Flow is valid
// only during the call.
func (c *Conn) Each(ctx context.Context, visit func(*Flow)) error {
	err := c.each(ctx, ctnetlink.StatusOffload, func(f *Flow) {
		if f.Offloaded {
			visit(f)
		}
	})
	if err != nil {
		return err
	}
	return ebpf.Each(c.netns, func(f *ebpf.Flow) {
		flow := Flow{Protocol: desired.Protocol(f.Original.Protocol), Source: f.Original.Src, Destination: f.Original.Dst, Backend: f.Reply.Src, Answered: true}
		flow.byEBPF(f)
		visit(&flow)
	})
}

// byEBPF takes over what the BPF program knows: conntrack does not count packets that it forwards.
func (f *Flow) byEBPF(by *ebpf.Flow) {
	f.Offloaded = true
	f.Sent, f.Received = Count{by.Packets[0], by.Bytes[0]}, Count{by.Packets[1], by.Bytes[1]}
}

// Translated calls visit with every connection with another destination than the client's,
// offloaded or not, as Each does.
func (c *Conn) Translated(ctx context.Context, visit func(*Flow)) error {
	return c.translated(ctx, 0, visit)
}

// ByNAT is Translated for a node without IPVS, whose entries lack the status DST_NAT. The kernel reports only the
// entries that have it (Linux 5.15), which takes a third of the time for others.
func (c *Conn) ByNAT(ctx context.Context, visit func(*Flow)) error {
	return c.translated(ctx, ctnetlink.StatusDNAT, visit)
}

func (c *Conn) translated(ctx context.Context, status uint32, visit func(*Flow)) error {
	offloaded := map[ctnetlink.Tuple]ebpf.Flow{}
	if err := ebpf.Each(c.netns, func(f *ebpf.Flow) { offloaded[f.Original] = *f }); err != nil {
		return err
	}
	return c.each(ctx, status, func(f *Flow) {
		if f.Destination == f.Backend {
			return
		}
		if by, is := offloaded[ctnetlink.Tuple{Protocol: uint8(f.Protocol), Src: f.Source, Dst: f.Destination}]; is {
			f.byEBPF(&by)
		}
		visit(f)
	})
}

func (c *Conn) each(ctx context.Context, status uint32, visit func(*Flow)) error {
	a := netlink.NewAttributeEncoder()
	if status != 0 {
		ctnetlink.WithStatus(a, status, false)
	}
	attributes, err := a.Encode()
	if err != nil {
		return err
	}
	var flow Flow
	err = c.Dump(ctx, unix.AF_UNSPEC, attributes, func(data []byte) {
		if flow.Parse(data) {
			visit(&flow)
		}
	})
	if err != nil {
		return fmt.Errorf("list connections: %w", err)
	}
	return nil
}

// Parse parses an entry as a dump or an event has it, from struct nfgenmsg on. ok is false for
// connections without ports.
func (f *Flow) Parse(data []byte) (ok bool) {
	var e ctnetlink.Entry
	ok = e.Parse(data)
	has := func(status uint32) bool { return e.Status&status != 0 }
	*f = Flow{
		ID: uint32(number(e.ID)), Protocol: desired.Protocol(e.Original.Protocol), Source: e.Original.Src, Destination: e.Original.Dst, Backend: e.Reply.Src,
		Sent: parseCount(e.Counters[0]), Received: parseCount(e.Counters[1]),
		Offloaded: has(ctnetlink.StatusOffload), Hardware: has(ctnetlink.StatusHWOffload), Answered: has(ctnetlink.StatusSeenReply), NAT: has(ctnetlink.StatusDNAT),
	}
	if ns := number(nfnl.Attr(e.Timestamp, nl.CTA_TIMESTAMP_START)); ns != 0 {
		f.Began = time.Unix(0, int64(ns))
	}
	return ok
}

func parseCount(b []byte) Count {
	return Count{number(nfnl.Attr(b, nl.CTA_COUNTERS_PACKETS)), number(nfnl.Attr(b, nl.CTA_COUNTERS_BYTES))}
}

// number decodes a number in network byte order, of up to 8 bytes.
func number(b []byte) (n uint64) {
	if len(b) > 8 {
		return 0
	}
	for _, x := range b {
		n = n<<8 | uint64(x)
	}
	return n
}
