// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"time"

	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/bench"
	"github.com/slipstream-proxy/slipstream/test/lab"
	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"
)

var (
	datagrams  = quantity("udp_packets", "UDP packets a second", bench.PerSecond, bench.More)
	packetCost = quantity("packet_cost", "forwarding one packet", bench.Nanoseconds, bench.Less)
	pathCost   = quantity("path_cost", "forwarding one packet, without the links", bench.Nanoseconds, bench.Less)
)

const (
	// datagramSize makes 60 bytes with UDP, IPv4 and Ethernet headers, as short as an
	// Ethernet frame can be.
	datagramSize = 18
	// batchSize is how many datagrams are sent with one system call.
	batchSize = 64
	// warmUp is how many datagrams go each way before a flood, more than any threshold
	// in Settings.
	warmUp = 30
	// mostLost is the share of a flood that may be lost. If packets were queued and
	// dropped, the sender's time would not be that of the packets.
	mostLost = 0.01
)

// floods measures floods of small datagrams.
func (m *measurement) floods(ctx context.Context) (err error) {
	echo, err := m.server.Serve(lab.UDP, m.backend(floodPort))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, echo.Close()) }()
	references, undo, err := m.divert(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, undo()) }()
	series := []bench.Series{datagrams}
	for _, r := range references {
		series = append(series, r.Series)
	}
	return m.turns(ctx, true, func(ctx context.Context) (values, error) {
		return m.floodTurn(ctx, references, time.Duration(m.options.Seconds)*time.Second)
	}, series...)
}

// floodTurn counts the datagrams of a flood where they are dropped, and measures the cost
// of one.
func (n *network) floodTurn(ctx context.Context, references []reference, d time.Duration) (values, error) {
	before, err := arrived(&n.server.Machine)
	if err != nil {
		return nil, err
	}
	sent, took, err := n.flood(ctx, d/2)
	if err != nil {
		return nil, err
	}
	after, err := arrived(&n.server.Machine)
	if err != nil {
		return nil, err
	}
	got := int(after - before)
	if lost := sent - got; float64(lost) > mostLost*float64(sent) {
		return nil, fmt.Errorf("flood: of %d datagrams %d were lost on the way", sent, lost)
	}
	v, err := n.costs(ctx, references, d/2)
	if err != nil {
		return nil, err
	}
	v[datagrams.Name] = float64(got) / took.Seconds()
	return v, nil
}

// flood sends datagrams to the Service over one socket for a time, from one processor.
func (n *network) flood(ctx context.Context, d time.Duration) (sent int, took time.Duration, err error) {
	b, err := n.newBatch(floodPort.port)
	if err != nil {
		return 0, 0, err
	}
	defer b.conn.Close()
	if err := b.converse(); err != nil {
		return 0, 0, err
	}
	err = onOneProcessor(func() error {
		for start := time.Now(); took < d && ctx.Err() == nil; took = time.Since(start) {
			k, _, err := b.send()
			if err != nil {
				return err
			}
			sent += k
		}
		return ctx.Err()
	})
	return sent, took, err
}

// reference is a port of the Service's address that the Service does not have, with a
// verdict for datagrams to it. The cost is that of a datagram to the Service beyond that
// of a datagram to the reference.
type reference struct {
	bench.Series
	port    uint16
	verdict string // of nft, in the first node's ingress hook
}

// divert has datagrams to the Service dropped where they arrive in the server's pod, and
// applies the references' verdicts where they arrive on the first node, before all other
// rules. It returns the references that this kernel and this network can have: a packet
// cannot be redirected to a link of another node, nor without CONFIG_NFT_FWD_NETDEV.
func (n *network) divert(ctx context.Context) (all []reference, undo func() error, err error) {
	all = []reference{
		{packetCost, floodPort.port + 1, "drop"},
		{pathCost, floodPort.port + 2, fmt.Sprintf("fwd to %q", n.server.NodeLink())},
	}[:min(2, 3-len(n.nodes))]
	ingress := func(m *lab.Machine, link string, rules ...reference) error {
		script := fmt.Sprintf("table netdev bench {\nchain ingress {\ntype filter hook ingress device %q priority -500\n", link)
		for _, r := range rules {
			script += fmt.Sprintf("udp dport %d udp length %d %s\n", r.port, datagramSize+8, r.verdict)
		}
		_, err := m.Run(ctx, "nft", script+"}\n}\n")
		return err
	}
	restore := func(m *lab.Machine) error {
		_, err := m.Run(context.WithoutCancel(ctx), "nft", "delete table netdev bench")
		return err
	}
	node, pod := &n.nodes[0].Machine, &n.server.Machine
	for err = ingress(node, n.client.NodeLink(), all...); err != nil; err = ingress(node, n.client.NodeLink(), all...) {
		if all = all[:len(all)-1]; len(all) == 0 {
			return nil, nil, fmt.Errorf("flood: nft cannot drop packets as they arrive: %w", err)
		}
	}
	drops := []reference{{port: floodPort.port, verdict: "drop"}}
	for _, r := range all {
		drops = append(drops, reference{port: r.port, verdict: "drop"})
	}
	if err := ingress(pod, podLink, drops...); err != nil {
		return nil, nil, errors.Join(err, restore(node))
	}
	return all, func() error { return errors.Join(restore(node), restore(pod)) }, nil
}

// costs sends batches to the Service and to references in turns, and returns the cost of
// a datagram to the Service beyond those, in nanoseconds: the median of the differences
// of neighbouring batches, as disturbances slow neighbours alike.
func (n *network) costs(ctx context.Context, references []reference, d time.Duration) (values, error) {
	service, err := n.newBatch(floodPort.port)
	if err != nil {
		return nil, err
	}
	defer service.conn.Close()
	if err := service.converse(); err != nil {
		return nil, err
	}
	batches := []*batch{service}
	for _, r := range references {
		b, err := n.newBatch(r.port)
		if err != nil {
			return nil, err
		}
		defer b.conn.Close()
		batches = append(batches, b)
	}
	differences, v := make([][]float64, len(references)), values{}
	err = onOneProcessor(func() error {
		for start := time.Now(); time.Since(start) < d && ctx.Err() == nil; {
			var toService time.Duration
			for i, b := range batches {
				k, took, err := b.send()
				if err != nil {
					return err
				}
				if k < batchSize {
					return fmt.Errorf("flood: only %d of %d datagrams could be sent at once", k, batchSize)
				}
				if i == 0 {
					toService = took
					continue
				}
				v[diverted] += batchSize
				differences[i-1] = append(differences[i-1], float64(toService-took)/batchSize)
			}
		}
		return ctx.Err()
	})
	for i, r := range references {
		v[r.Name] = bench.Median(differences[i])
	}
	return v, err
}

// batch is datagrams that are sent with one system call.
type batch struct {
	conn     *net.UDPConn
	packets  *ipv4.PacketConn // the same system call is used for IPv6
	messages []ipv4.Message
}

// newBatch opens a socket in the client's pod, for a port of the Service's address.
func (n *network) newBatch(port uint16) (b *batch, err error) {
	b = &batch{messages: make([]ipv4.Message, batchSize)}
	for i := range b.messages {
		b.messages[i].Buffers = [][]byte{make([]byte, datagramSize)}
	}
	err = n.client.Do(func() (err error) {
		b.conn, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(n.clusterIP, port)))
		return err
	})
	if err == nil {
		b.packets = ipv4.NewPacketConn(b.conn)
	}
	return b, err
}

// converse exchanges datagrams with the server, which establishes the connection.
func (b *batch) converse() error {
	if err := b.conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	answer := make([]byte, 2048)
	for range warmUp {
		if _, err := b.conn.Write([]byte("hello\n")); err != nil {
			return fmt.Errorf("flood: %w", err)
		}
		if _, err := b.conn.Read(answer); err != nil {
			return fmt.Errorf("flood: the server does not answer: %w", err)
		}
	}
	return nil
}

// send sends the batch, and returns how many of its datagrams were sent in which time.
func (b *batch) send() (n int, took time.Duration, err error) {
	start := time.Now()
	if n, err = b.packets.WriteBatch(b.messages, 0); err != nil {
		return n, 0, fmt.Errorf("flood: %w", err)
	}
	return n, time.Since(start), nil
}

// onOneProcessor runs f on a thread that stays on the last processor that this process
// may use. Interrupts mostly go to the first.
func onOneProcessor(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return fmt.Errorf("processors of this process: %w", err)
	}
	last := 64*len(all) - 1
	for last > 0 && !all.IsSet(last) {
		last--
	}
	one.Set(last)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return fmt.Errorf("pin to processor %d: %w", last, err)
	}
	defer func() { _ = unix.SchedSetaffinity(0, &all) }()
	return f()
}
