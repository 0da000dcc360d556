// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"time"

	"github.com/aclements/go-moremath/stats"
	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/bench"
	"github.com/slipstream-proxy/slipstream/test/lab"
	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"
)

var (
	datagrams  = bench.Quantity("udp_packets", "UDP packets a second", bench.PerSecond, bench.More)
	packetCost = bench.Quantity("packet_cost", "forwarding one packet", bench.Nanoseconds, bench.Less)
	pathCost   = bench.Quantity("path_cost", "forwarding one packet, without the links", bench.Nanoseconds, bench.Less)
)

const (
	// datagramSize makes 60 bytes with UDP, IPv4 and Ethernet headers, as short as an
	// Ethernet frame can be.
	datagramSize = 18
	batchSize    = 64   // datagrams that are sent with one system call
	warmUp       = 30   // datagrams each way before a flood, more than any threshold in Settings
	mostLost     = 0.01 // of a flood. If packets were dropped, the sender's time would not be theirs
)

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
// of one: the median of the differences of neighbouring batches.
func (n *network) floodTurn(ctx context.Context, references []reference, d time.Duration) (values, error) {
	if n.linked || n.sockets { // no node has the references; sockets of UDP are left alone
		return nil, nil
	}
	before, err1 := arrived(&n.server.Machine)
	times, err2 := n.flood(ctx, d/2)
	after, err3 := arrived(&n.server.Machine)
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, err
	}
	got, sent := float64(after-before), float64(batchSize*len(times[0]))
	if lost := sent - got; lost > mostLost*sent {
		return nil, fmt.Errorf("flood: of %.0f datagrams %.0f were lost on the way", sent, lost)
	}
	v := values{datagrams.Name: got / sent * batchSize * 1e9 / stats.Mean(times[0])}
	times, err := n.flood(ctx, d/2, references...)
	if err != nil {
		return nil, err
	}
	for i, r := range references {
		differences := times[i+1]
		for k := range differences {
			differences[k] = (times[0][k] - differences[k]) / batchSize
		}
		v[r.Name] = bench.Median(differences)
		v[diverted] += float64(batchSize * len(differences))
	}
	return v, nil
}

// flood sends batches of datagrams to the Service and to references, in turns, for a time,
// from one processor. It returns how long each batch took in nanoseconds, those to the
// Service first.
func (n *network) flood(ctx context.Context, d time.Duration, references ...reference) ([][]float64, error) {
	var batches []*batch
	for _, r := range append([]reference{{port: floodPort.port}}, references...) {
		b, err := n.newBatch(r.port)
		if err != nil {
			return nil, err
		}
		defer b.conn.Close()
		batches = append(batches, b)
	}
	if err := batches[0].converse(); err != nil {
		return nil, err
	}
	times := make([][]float64, len(batches))
	err := onOneProcessor(func() error {
		for start := time.Now(); time.Since(start) < d && ctx.Err() == nil; {
			for i, b := range batches {
				took, err := b.send()
				if err != nil {
					return err
				}
				times[i] = append(times[i], float64(took))
			}
		}
		return ctx.Err()
	})
	return times, err
}

// reference is a port of the Service's address that the Service does not have, with a
// verdict for datagrams to it. The cost is that of a datagram to the Service beyond that
// of a datagram to the reference.
type reference struct {
	bench.Series
	port    uint16
	verdict string // of nft, in the first node's ingress hook
}

// divert has datagrams to the Service dropped as they arrive in the server's pod, and applies
// the references' verdicts as they arrive on the first node. It returns the references that
// this network and this kernel can have: a packet cannot be redirected to a link of another
// node, nor without CONFIG_NFT_FWD_NETDEV.
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

type batch struct {
	conn     *net.UDPConn
	packets  *ipv4.PacketConn // the same system call is used for IPv6
	messages []ipv4.Message
}

func (n *network) newBatch(port uint16) (b *batch, err error) {
	b = &batch{messages: make([]ipv4.Message, batchSize)}
	for i := range b.messages {
		b.messages[i].Buffers = [][]byte{make([]byte, datagramSize)}
	}
	err = n.client.Do(func() (err error) {
		b.conn, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(n.frontend(servicePort{port: port})))
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

func (b *batch) send() (time.Duration, error) {
	start := time.Now()
	n, err := b.packets.WriteBatch(b.messages, 0)
	took := time.Since(start)
	if err == nil && n < batchSize {
		err = fmt.Errorf("only %d of %d datagrams could be sent at once", n, batchSize)
	}
	if err != nil {
		return 0, fmt.Errorf("flood: %w", err)
	}
	return took, nil
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
