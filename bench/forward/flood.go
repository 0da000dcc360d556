// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/slipstream-proxy/slipstream/bench/stats"
	"github.com/slipstream-proxy/slipstream/lab"
	"golang.org/x/net/ipv4"
)

// datagram is what a flood consists of: with UDP, IPv4 and Ethernet headers 60
// bytes, as short as an Ethernet frame can be.
const datagram = 18

// batch is how many datagrams are sent with one system call.
const batch = 64

// warmUp is how many datagrams go each way before a flood, more than any
// threshold in Settings.
const warmUp = 30

// divert applies a verdict of nft's to a flood's datagrams as they arrive on one of
// a machine's interfaces, before anything else sees them. Other traffic is not
// touched.
func divert(ctx context.Context, m *lab.Machine, link, verdict string) error {
	_, err := m.Run(ctx, "nft", fmt.Sprintf(`
table netdev bench {
	chain arriving {
		type filter hook ingress device %q priority -500
		udp dport %d udp length %d %s
	}
}`, link, floodPort.port, datagram+8, verdict))
	return err
}

const drop = "drop"

// undivert undoes divert.
func undivert(ctx context.Context, m *lab.Machine) error {
	_, err := m.Run(ctx, "nft", "delete table netdev bench")
	return err
}

// flooded is how a flood went.
type flooded struct {
	sent    int
	took    time.Duration
	batches []time.Duration // each
}

// perPacket is the time for one datagram in the batches that took least: all but
// one in ten took longer. What other processes take of the processor is thus not
// in it, as it is in the mean.
func (f flooded) perPacket() time.Duration {
	const least = 5 // percent
	return stats.Percentile(f.batches, least) / batch
}

// flood sends datagrams to the Service over one socket for a time, from one
// processor.
func (w *world) flood(ctx context.Context, d time.Duration) (f flooded, err error) {
	var c *net.UDPConn
	err = w.client.Do(func() error {
		c, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(w.frontend(floodPort)))
		return err
	})
	if err != nil {
		return f, err
	}
	defer c.Close()
	if err := converse(c, warmUp); err != nil {
		return f, err
	}
	err = onOneProcessor(func() error {
		f, err = send(ctx, c, d)
		return err
	})
	return f, err
}

// converse exchanges datagrams with the server, by which the connection becomes an
// established one.
func converse(c *net.UDPConn, n int) error {
	if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	b := make([]byte, 2048)
	for range n {
		if _, err := c.Write([]byte("hello\n")); err != nil {
			return fmt.Errorf("flood: %w", err)
		}
		if _, err := c.Read(b); err != nil {
			return fmt.Errorf("flood: the server does not answer: %w", err)
		}
	}
	return nil
}

// send sends as fast as it can until the time is over.
func send(ctx context.Context, c *net.UDPConn, d time.Duration) (f flooded, err error) {
	// Of the other family's package it is the same system call.
	to := ipv4.NewPacketConn(c)
	messages := make([]ipv4.Message, batch)
	for i := range messages {
		messages[i].Buffers = [][]byte{make([]byte, datagram)}
	}
	start := time.Now()
	for before := start; f.took < d && ctx.Err() == nil; {
		n, err := to.WriteBatch(messages, 0)
		if err != nil {
			return f, fmt.Errorf("flood: %w", err)
		}
		now := time.Now()
		f.sent += n
		if n == batch {
			f.batches = append(f.batches, now.Sub(before))
		}
		before, f.took = now, now.Sub(start)
	}
	return f, ctx.Err()
}
