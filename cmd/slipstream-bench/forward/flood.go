// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/net/ipv4"
)

// datagram is what a flood consists of: with UDP, IPv4 and Ethernet headers 60
// bytes, as short as an Ethernet frame can be.
const datagram = 18

// batchSize is how many datagrams are sent with one system call.
const batchSize = 64

// warmUp is how many datagrams go each way before a flood, more than any
// threshold in Settings.
const warmUp = 30

// flooded is how a flood went.
type flooded struct {
	sent int
	took time.Duration
}

// flood sends datagrams to the Service over one socket for a time, from one
// processor.
func (w *world) flood(ctx context.Context, d time.Duration) (f flooded, err error) {
	c, err := w.floodSocket(floodPort.port)
	if err != nil {
		return f, err
	}
	defer c.Close()
	if err := converse(c, warmUp); err != nil {
		return f, err
	}
	err = onOneProcessor(func() error {
		b := newBatch(c)
		for start := time.Now(); f.took < d && ctx.Err() == nil; f.took = time.Since(start) {
			n, _, err := b.send()
			if err != nil {
				return err
			}
			f.sent += n
		}
		return ctx.Err()
	})
	return f, err
}

// floodSocket is a socket of the client's, for a port of the Service's address.
func (w *world) floodSocket(port uint16) (c *net.UDPConn, err error) {
	err = w.client.Do(func() error {
		c, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(w.clusterIP(), port)))
		return err
	})
	return c, err
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

// batch is datagrams that are sent with one system call.
type batch struct {
	// Of the other family's package it is the same system call.
	conn     *ipv4.PacketConn
	messages []ipv4.Message
}

func newBatch(c *net.UDPConn) *batch {
	b := &batch{conn: ipv4.NewPacketConn(c), messages: make([]ipv4.Message, batchSize)}
	for i := range b.messages {
		b.messages[i].Buffers = [][]byte{make([]byte, datagram)}
	}
	return b
}

// send sends the batch, and says how many of its datagrams went and what they took.
func (b *batch) send() (n int, took time.Duration, err error) {
	start := time.Now()
	if n, err = b.conn.WriteBatch(b.messages, 0); err != nil {
		return n, 0, fmt.Errorf("flood: %w", err)
	}
	return n, time.Since(start), nil
}
