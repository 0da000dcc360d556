// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/slipstream-proxy/slipstream/bench/bench"
	"golang.org/x/sys/unix"
)

var (
	cpuAggregated = bench.Quantity("cpu_aggregated", "  processor time of the machine for 1 Gbit", bench.Nanoseconds, bench.Less)
	cpuPackets    = bench.Quantity("cpu_packets", "  processor time of the machine for 1 Gbit", bench.Nanoseconds, bench.Less)
	rrRate        = bench.Quantity("rr_rate", "requests and responses a second, one connection", bench.PerSecond, bench.More)
)

// firewall adds rules to the node's forward hook, as a firewall has them.
func (m *measurement) firewall(ctx context.Context) error {
	const table = `table inet bench-firewall {
	chain forward {
		type filter hook forward priority filter; policy accept;
		ct state invalid counter drop
		meta l4proto sctp counter drop
		ct state established,related counter accept
	}
}
`
	_, err := m.node.Run(ctx, "nft", table)
	return err
}

// requestsOnOne measures requests of a byte, one after the other on one connection (TCP_RR).
func (m *measurement) requestsOnOne(ctx context.Context) (err error) {
	stop, err := bench.Serve(m.server.Namespace, m.backend(requestPort), respondAll)
	if err != nil {
		return err
	}
	defer func() {
		if err == nil {
			stop() // the port is used again
		}
	}()
	return m.turns(ctx, true, func(ctx context.Context) (values, error) {
		d := time.Duration(m.options.Seconds) * time.Second
		ctx, cancel := context.WithTimeout(ctx, d+patience)
		defer cancel()
		var v values
		err := m.asClient(ctx, func() (err error) {
			v, err = converse(ctx, m.frontend(requestPort), d)
			return err
		})
		if err != nil {
			return nil, err
		}
		return v, nil
	}, rrRate)
}

// respondAll answers all requests of a connection.
func respondAll(fd int) {
	var b [1]byte
	for {
		if n, err := unix.Read(fd, b[:]); n != 1 || err != nil {
			return
		}
		if _, err := unix.Write(fd, b[:]); err != nil {
			return
		}
	}
}

// converse makes requests on a connection for a time. Those before the connection can have been
// offloaded are not measured.
func converse(ctx context.Context, to netip.AddrPort, d time.Duration) (values, error) {
	family, address := bench.Sockaddr(to)
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	if err := unix.Connect(fd, address); err != nil {
		return nil, err
	}
	b := [1]byte{'?'}
	request := func() error {
		if _, err := unix.Write(fd, b[:]); err != nil {
			return err
		}
		_, err := unix.Read(fd, b[:])
		return err
	}
	settle := time.Now()
	for i := 0; i < 10*threshold || time.Since(settle) < 100*time.Millisecond; i++ {
		if err := request(); err != nil {
			return nil, err
		}
	}
	begin, made := time.Now(), 0
	for ; time.Since(begin) < d && ctx.Err() == nil; made++ {
		if err := request(); err != nil {
			return nil, err
		}
	}
	elapsed := time.Since(begin)
	// The end of the connection is awaited, as the settings forget all connections.
	if err := unix.Shutdown(fd, unix.SHUT_WR); err != nil {
		return nil, err
	}
	if _, err := unix.Read(fd, b[:]); err != nil {
		return nil, fmt.Errorf("end of the connection: %w", err)
	}
	return values{rrRate.Name: float64(made) / elapsed.Seconds()}, ctx.Err()
}
