// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/aclements/go-moremath/stats"
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/slipstream-proxy/slipstream/bench/bench"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"
)

var (
	datagrams  = bench.Quantity("udp_packets", "UDP packets a second", bench.PerSecond, bench.More)
	packetCost = bench.Quantity("packet_cost", "forwarding one packet", bench.Nanoseconds, bench.Less)
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
	links := []string{podLink}
	if slices.ContainsFunc(m.settings, func(s Setting) bool { return s.linked }) {
		links = append(links, directLink)
	}
	undo, err := m.divert(ctx, links...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, undo()) }()
	return m.turns(ctx, true, func(ctx context.Context) (values, error) {
		return m.floodTurn(ctx, time.Duration(m.options.Seconds)*time.Second)
	}, datagrams, packetCost)
}

// floodTurn counts the datagrams of a flood where they are dropped, and measures the cost
// of one: the median of the differences of neighbouring batches.
func (n *network) floodTurn(ctx context.Context, d time.Duration) (values, error) {
	if n.sockets { // those of UDP are left alone
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
	if n.linked { // the node does not see the reference
		return v, nil
	}
	times, err := n.flood(ctx, d/2, reference)
	if err != nil {
		return nil, err
	}
	differences := times[1]
	for k := range differences {
		differences[k] = (times[0][k] - differences[k]) / batchSize
	}
	v[packetCost.Name], v[diverted] = bench.Median(differences), float64(batchSize*len(differences))
	return v, nil
}

// flood sends batches of datagrams to the Service and to other ports of its address, in turns, for a time,
// from one processor. It returns how long each batch took in nanoseconds, those to the
// Service first.
func (n *network) flood(ctx context.Context, d time.Duration, others ...uint16) ([][]float64, error) {
	var batches []*batch
	for _, port := range append([]uint16{floodPort.port}, others...) {
		b, err := n.newBatch(port)
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

// reference is a port of the Service's address that the Service does not have. Forwarding costs what a datagram to the Service
// takes beyond one to it.
var reference = floodPort.port + 1

// divert has datagrams to the Service dropped as they arrive in the server's pod by links, and those to the
// reference as they arrive on the node. A program of tcx does that, as the fast path leaves out interfaces with chains or
// filters of tc. It comes before the fast path's.
func (n *network) divert(ctx context.Context, links ...string) (undo func() error, err error) {
	node, pod := &n.node.Machine, &n.server.Machine
	in, err := node.Netlink().LinkByName(n.client.NodeLink())
	if err != nil {
		return nil, err
	}
	const (
		protocol, port = 14 + 9, 14 + 20 + 2 // behind Ethernet's header, and IPv4's without options
		next, drop     = -1, 2               // TCX_NEXT, TCX_DROP
	)
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, AttachType: ebpf.AttachTCXIngress, License: "GPL", Instructions: asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadAbs(protocol, asm.Byte),
		asm.JNE.Imm(asm.R0, unix.IPPROTO_UDP, "next"),
		asm.LoadAbs(port, asm.Half),
		asm.JNE.Imm(asm.R0, int32(reference), "next"),
		asm.Mov.Imm(asm.R0, drop),
		asm.Return(),
		asm.Mov.Imm(asm.R0, next).WithSymbol("next"),
		asm.Return(),
	}})
	if err != nil {
		return nil, fmt.Errorf("flood: %w", err)
	}
	defer program.Close()
	l, err := lab.In(node.Namespace, func() (link.Link, error) {
		return link.AttachTCX(link.TCXOptions{Interface: in.Attrs().Index, Program: program, Attach: ebpf.AttachTCXIngress, Anchor: link.Head()})
	})
	if err != nil {
		return nil, fmt.Errorf("flood: this needs tcx (Linux 6.6): %w", err)
	}
	const drops = "table netdev bench {\nchain ingress {\ntype filter hook ingress devices = { %s } priority -500\nudp dport %d udp length %d drop\n}\n}"
	if _, err := pod.Run(ctx, "nft", fmt.Sprintf(drops, strings.Join(links, ", "), floodPort.port, datagramSize+8)); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return func() error {
		_, err := pod.Run(context.WithoutCancel(ctx), "nft", "delete table netdev bench")
		return errors.Join(err, l.Close())
	}, nil
}

type batch struct {
	conn     *net.UDPConn
	packets  *ipv4.PacketConn
	messages []ipv4.Message
}

func (n *network) newBatch(port uint16) (b *batch, err error) {
	b = &batch{messages: make([]ipv4.Message, batchSize)}
	for i := range b.messages {
		b.messages[i].Buffers = [][]byte{make([]byte, datagramSize)}
	}
	b.conn, err = lab.In(n.client.Namespace, func() (*net.UDPConn, error) {
		return net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(n.frontend(servicePort{port: port})))
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

// processors returns the first and the last processor that this process may use. Interrupts mostly go to the first.
func processors() (first, last int, err error) {
	var all unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return 0, 0, fmt.Errorf("processors of this process: %w", err)
	}
	last = 64*len(all) - 1
	for first < last && !all.IsSet(first) {
		first++
	}
	for last > first && !all.IsSet(last) {
		last--
	}
	return first, last, nil
}

// onOneProcessor runs f on a thread that stays on the last processor.
func onOneProcessor(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all, one unix.CPUSet
	_, last, err := processors()
	if err = errors.Join(err, unix.SchedGetaffinity(0, &all)); err != nil {
		return err
	}
	one.Set(last)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return fmt.Errorf("pin to processor %d: %w", last, err)
	}
	defer func() { _ = unix.SchedSetaffinity(0, &all) }()
	return f()
}
