// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"os"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/slipstream-proxy/slipstream/bench/bench"
	"golang.org/x/sys/unix"
)

var (
	crrRate   = bench.Quantity("crr_rate", "connections a second", bench.PerSecond, bench.More)
	crrMedian = bench.Quantity("crr_median", "latency, median", bench.Nanoseconds, bench.Less)
	crrP99    = bench.Quantity("crr_p99", "latency, 99th percentile", bench.Nanoseconds, bench.Less)

	crrSeries = []bench.Series{crrRate, crrMedian, crrP99}
)

// ignored is how many connections a client makes before it measures.
const ignored = 50

// shortConnections measures connections that carry one request and one response of a byte each, one
// after the other: their rate, and the time of each from the call of connect to the
// server's end of the connection. Client and server are threads with blocking system calls:
// each needs a processor of Go's scheduler when its call returns.
func (m *measurement) shortConnections(ctx context.Context) error {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(max(4, runtime.NumCPU())))
	stop, err := bench.Serve(m.server.Namespace, m.backend(requestPort), respond)
	if err != nil {
		return err
	}
	defer func() { go stop() }() // the server may wait for a request of an interrupted client
	return m.turns(ctx, false, func(ctx context.Context) (values, error) {
		return m.requests(ctx, m.options.Connections)
	}, crrSeries...)
}

// respond answers a request. The server ends the connection: its own port stays in
// TIME_WAIT, and the client's can be used again.
func respond(fd int) {
	var b [1]byte
	if n, err := unix.Read(fd, b[:]); n == 1 && err == nil {
		_, _ = unix.Write(fd, b[:])
	}
}

func (n *network) requests(ctx context.Context, count int) (values, error) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	ctx, cancel := context.WithTimeout(ctx, patience+time.Duration(count)*10*time.Millisecond)
	defer cancel()
	var took []float64
	var elapsed time.Duration
	err := n.asClient(ctx, func() (err error) {
		took, elapsed, err = makeRequests(ctx, n.frontend(requestPort), count)
		return err
	})
	if err != nil {
		return nil, err
	}
	return values{
		crrRate.Name:   float64(count) / elapsed.Seconds(),
		crrMedian.Name: bench.Median(took),
		crrP99.Name:    bench.Percentile(took, 99),
	}, nil
}

// asClient calls f in the client's pod, and waits for it until ctx ends.
func (n *network) asClient(ctx context.Context, f func() error) error {
	done := make(chan error, 1)
	go func() { done <- n.client.Do(f) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("connections to %v: %w", n.frontend(requestPort), ctx.Err())
	}
}

// makeRequests makes connections one after the other, and returns the time of each in
// nanoseconds.
func makeRequests(ctx context.Context, to netip.AddrPort, n int) (all []float64, elapsed time.Duration, err error) {
	all = make([]float64, 0, n)
	var begin time.Time
	for i := 0; i < ignored+n && ctx.Err() == nil; i++ {
		if i == ignored {
			begin = time.Now()
		}
		took, err := makeRequest(to)
		if err != nil {
			return nil, 0, fmt.Errorf("connection %d to %v: %w", i+1, to, err)
		}
		if i >= ignored {
			all = append(all, float64(took))
		}
	}
	return all, time.Since(begin), ctx.Err()
}

func makeRequest(to netip.AddrPort) (time.Duration, error) {
	address := bench.Sockaddr(to)
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	b := [1]byte{'?'}
	start := time.Now()
	if err := unix.Connect(fd, address); err != nil {
		return 0, os.NewSyscallError("connect", err)
	}
	if _, err := unix.Write(fd, b[:]); err != nil {
		return 0, os.NewSyscallError("write", err)
	}
	for _, want := range []int{1, 0} {
		n, err := unix.Read(fd, b[:])
		if err != nil {
			return 0, os.NewSyscallError("read", err)
		}
		if n != want {
			return 0, io.ErrUnexpectedEOF
		}
	}
	return time.Since(start), nil
}
