// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/slipstream-proxy/slipstream/lab"
)

// The references that tell what of a packet's time is the node's. In turns of
// theirs the first node's ingress hook decides what becomes of a flood.
var (
	// arrival: it is dropped as it arrives on the node. More than that is what it
	// takes to forward a packet: to handle it, to send it, and to receive it in the
	// server's pod, which takes what it took to receive it on the node.
	arrival = Setting{Name: "dropped on arrival"}

	// handOver: it is sent to the server's pod as it is. More than that is what
	// handling it takes: the path, without the links.
	handOver = Setting{Name: "handed over"}
)

// packetTime is the value of a turn that is the time of one packet of a flood, in
// nanoseconds.
const packetTime = "packet_time"

// floods measures floods of small datagrams.
func (w *world) floods(ctx context.Context, o ThroughputOptions, r *Result) (err error) {
	echo, err := w.server.Serve(lab.UDP, w.backend(floodPort))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, echo.Close()) }()
	if err := divert(ctx, &w.server.Machine, podLink, drop); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, undivert(context.WithoutCancel(ctx), &w.server.Machine)) }()
	references, err := w.references(ctx)
	if err != nil {
		return err
	}
	settings := slices.Concat(r.settings(), references)
	m, err := w.turns(ctx, o.Rounds, settings, func(ctx context.Context, s Setting) (values, error) {
		return w.floodTurn(ctx, s, time.Duration(o.Seconds)*time.Second)
	})
	if err != nil {
		return err
	}
	quantities := []quantity{datagrams, packetCost, pathCost}[:1+len(references)]
	for i, q := range quantities[1:] {
		m.cost(q, len(r.settings())+i)
	}
	m.keep(len(r.settings()))
	return errors.Join(m.offloaded(), r.add(m, quantities...))
}

// references are those that there can be: packets cannot be handed over to the
// other node as they are, nor where the kernel has no such verdict
// (CONFIG_NFT_FWD_NETDEV).
func (w *world) references(ctx context.Context) ([]Setting, error) {
	all := []Setting{arrival}
	if len(w.nodes) > 1 {
		return all, nil
	}
	if err := w.divertOnNode(ctx, handOver); err != nil {
		return all, ctx.Err()
	}
	return append(all, handOver), undivert(ctx, &w.nodes[0].Machine)
}

// divertOnNode has the first node treat a flood as a reference says.
func (w *world) divertOnNode(ctx context.Context, reference Setting) error {
	verdict := drop
	if reference == handOver {
		verdict = fmt.Sprintf("fwd to %q", w.server.NodeLink())
	}
	return divert(ctx, &w.nodes[0].Machine, w.client.NodeLink(), verdict)
}

// mostLost is the share of a flood that may be lost. If packets were queued on
// their way and dropped, the sender's time would no longer be the packet's.
const mostLost = 0.01

// floodTurn counts the datagrams of a flood where they are dropped.
func (w *world) floodTurn(ctx context.Context, s Setting, d time.Duration) (v values, err error) {
	node, end := &w.nodes[0].Machine, &w.server.Machine
	if s == arrival || s == handOver {
		if err := w.divertOnNode(ctx, s); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, undivert(context.WithoutCancel(ctx), node)) }()
	}
	if s == arrival {
		end = node
	}
	before, err := arrived(end)
	if err != nil {
		return nil, err
	}
	f, err := w.flood(ctx, d)
	if err != nil {
		return nil, err
	}
	after, err := arrived(end)
	if err != nil {
		return nil, err
	}
	got := int(after - before)
	if lost := f.sent - got; float64(lost) > mostLost*float64(f.sent) {
		return nil, fmt.Errorf("flood: of %d datagrams %d were lost on the way", f.sent, lost)
	}
	return values{datagrams.name: float64(got) / f.took.Seconds(), packetTime: float64(f.perPacket())}, nil
}

// cost adds the time of a packet above that of a reference, in the same round.
func (m *measured) cost(q quantity, reference int) {
	for _, turns := range m.values {
		for round, v := range turns {
			v[q.name] = v[packetTime] - m.values[reference][round][packetTime]
		}
	}
}

// keep drops all settings but the first n.
func (m *measured) keep(n int) {
	m.settings, m.values, m.slow = m.settings[:n], m.values[:n], m.slow[:n]
}
