// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"time"

	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/bench"
	"github.com/slipstream-proxy/slipstream/test/lab"
)

var (
	crrRate   = quantity("crr_rate", "connections a second", bench.PerSecond, bench.More)
	crrMin    = quantity("crr_min", "latency, minimum", bench.Nanoseconds, bench.Less)
	crrMedian = quantity("crr_median", "latency, median", bench.Nanoseconds, bench.Less)
	crrMean   = quantity("crr_mean", "latency, mean", bench.Nanoseconds, bench.Less)
	crrP99    = quantity("crr_p99", "latency, 99th percentile", bench.Nanoseconds, bench.Less)
	crrStdDev = quantity("crr_stddev", "latency, standard deviation", bench.Nanoseconds, bench.Less)

	crrSeries = []bench.Series{crrRate, crrMin, crrMedian, crrMean, crrP99, crrStdDev}
)

// CRR measures connections that carry one request and one response of a byte each, one
// after the other: their rate, and the time of each from the call of connect to the
// server's end of the connection. command starts a process that calls [RunPeer] with the
// arguments that follow.
func CRR(ctx context.Context, command []string, o Options) (*bench.Result, error) {
	if err := o.validateCRR(); err != nil {
		return nil, err
	}
	return run(ctx, "crr", bench.Thousands(o.Connections)+" connections", &o, func(m *measurement) (err error) {
		server, err := m.requestServer(command)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, server.Kill()) }()
		return m.turns(ctx, false, func(ctx context.Context) (values, error) {
			return m.requests(ctx, command, o.Connections)
		}, crrSeries...)
	})
}

// requestServer starts the server in its pod, with a socket that listens already.
func (n *network) requestServer(command []string) (*lab.Process, error) {
	var socket *os.File
	err := n.server.Do(func() error {
		l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(n.backend(requestPort)))
		if err != nil {
			return err
		}
		defer l.Close()
		socket, err = l.File()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	defer socket.Close()
	cmd := exec.Command(command[0], append(slices.Clone(command[1:]), peerServer)...)
	cmd.Stderr = os.Stderr
	cmd.ExtraFiles = []*os.File{socket}
	return n.server.Start(cmd)
}

// requests has a client make connections, and sums up their times.
func (n *network) requests(ctx context.Context, command []string, count int) (values, error) {
	ctx, cancel := context.WithTimeout(ctx, patience+time.Duration(count)*10*time.Millisecond)
	defer cancel()
	args := append(slices.Clone(command[1:]), peerClient, n.frontend(requestPort).String(), strconv.Itoa(count))
	out, err := n.client.Run(ctx, command[0], args...)
	if err != nil {
		return nil, err
	}
	var report clientReport
	if err := json.Unmarshal(out, &report); err != nil {
		return nil, fmt.Errorf("client: report: %w", err)
	}
	if len(report.Took) != count {
		return nil, fmt.Errorf("client: report: %d connections, want %d", len(report.Took), count)
	}
	return values{
		crrRate.Name:   float64(count) / report.Elapsed.Seconds(),
		crrMin.Name:    slices.Min(report.Took),
		crrMedian.Name: bench.Median(report.Took),
		crrMean.Name:   bench.Average(report.Took),
		crrP99.Name:    bench.Percentile(report.Took, 99),
		crrStdDev.Name: bench.StdDev(report.Took),
	}, nil
}
