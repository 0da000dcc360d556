// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/slipstream-proxy/slipstream/bench/bench"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
)

var (
	streamAggregated = bench.Quantity("stream_aggregated", "TCP stream, segments aggregated", bench.BitsPerSecond, bench.More)
	streamPackets    = bench.Quantity("stream_packets", "TCP stream, GSO, TSO and GRO off", bench.BitsPerSecond, bench.More)
	cpuAggregated    = bench.Quantity("cpu_aggregated", "  processor time of the machine for 1 Gbit", bench.Nanoseconds, bench.Less)
	cpuPackets       = bench.Quantity("cpu_packets", "  processor time of the machine for 1 Gbit", bench.Nanoseconds, bench.Less)
)

// streams measures the rates of TCP streams and their processor time. Sender and receiver are on processors of their own.
func (m *measurement) streams(ctx context.Context, rate, cpu bench.Series) (err error) {
	server, err := m.streamServer(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Kill()) }()
	return m.turns(ctx, true, func(ctx context.Context) (values, error) {
		before, err1 := bench.ProcessorSeconds()
		received, err2 := m.stream(ctx, m.options.Seconds, m.options.Streams)
		after, err3 := bench.ProcessorSeconds()
		gigabits := received * float64(m.options.Seconds) / 1e9
		used := 1e9 * (after.Busy - before.Busy)
		return values{rate.Name: received, cpu.Name: used / gigabits}, errors.Join(err1, err2, err3)
	}, rate, cpu)
}

// patience bounds short waits, also on a busy machine.
const patience = 30 * time.Second

// streamServer starts iperf3 in the server's pod. It may not listen yet; clients try again.
func (n *network) streamServer(ctx context.Context) (*lab.Process, error) {
	at := n.backend(streamPort)
	return n.server.Start(exec.CommandContext(ctx, "iperf3", "--server", "--bind", at.Addr().String(), "--port", strconv.Itoa(int(at.Port()))))
}

// errNotReady says that the server does not take a stream yet. iperf3 does not listen for
// a moment between two streams.
var errNotReady = errors.New("iperf3: the server is not ready")

// stream returns how fast streams were received, in bit/s.
func (n *network) stream(ctx context.Context, seconds, streams int) (rate float64, err error) {
	first, last, err := processors()
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(seconds)*time.Second+2*patience)
	defer cancel()
	to := n.frontend(streamPort)
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		rate, err = parseStream(n.client.Run(ctx, "iperf3", "--json", "--client", to.Addr().String(), "--port", strconv.Itoa(int(to.Port())),
			"--time", strconv.Itoa(seconds), "--affinity", fmt.Sprintf("%d,%d", last, first), "--parallel", strconv.Itoa(max(streams, 1))))
		if !errors.Is(err, errNotReady) || time.Now().After(deadline) {
			return rate, err
		}
	}
}

// parseStream reads a report of iperf3. Its errors are in the report too.
func parseStream(report []byte, exit error) (rate float64, err error) {
	var r struct {
		Error string `json:"error"`
		End   struct {
			Received struct {
				BitsPerSecond float64 `json:"bits_per_second"`
			} `json:"sum_received"`
		} `json:"end"`
	}
	err = json.Unmarshal(report, &r)
	switch {
	case err == nil && (strings.HasPrefix(r.Error, "unable to connect to server") || strings.Contains(r.Error, "server is busy")):
		return 0, fmt.Errorf("%w: %s", errNotReady, r.Error)
	case err == nil && r.Error != "":
		return 0, fmt.Errorf("iperf3: %s", r.Error)
	case exit != nil:
		return 0, exit
	case err != nil:
		return 0, fmt.Errorf("iperf3: report: %w", err)
	case r.End.Received.BitsPerSecond <= 0:
		return 0, errors.New("iperf3: report: nothing was received")
	}
	return r.End.Received.BitsPerSecond, nil
}
