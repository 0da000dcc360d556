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
	streamAggregated     = bench.Quantity("stream_aggregated", "TCP stream, segments aggregated", bench.BitsPerSecond, bench.More)
	streamAggregatedBest = bench.Quantity("stream_aggregated_best", "TCP stream, segments aggregated, best tenth of a second", bench.BitsPerSecond, bench.More)
	streamPackets        = bench.Quantity("stream_packets", "TCP stream, GSO, TSO and GRO off", bench.BitsPerSecond, bench.More)
	streamPacketsBest    = bench.Quantity("stream_packets_best", "TCP stream, GSO, TSO and GRO off, best tenth of a second", bench.BitsPerSecond, bench.More)
	cpuAggregated        = bench.Quantity("cpu_aggregated", "  processor time of the machine for 1 Gbit", bench.Nanoseconds, bench.Less)
	cpuPackets           = bench.Quantity("cpu_packets", "  processor time of the machine for 1 Gbit", bench.Nanoseconds, bench.Less)
)

// streams measures the rates of TCP streams over a whole turn, and over its best tenth of
// a second, which other processes disturb least, and their processor time.
func (m *measurement) streams(ctx context.Context, whole, best, cpu bench.Series) (err error) {
	server, err := m.streamServer(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Kill()) }()
	return m.turns(ctx, true, func(ctx context.Context) (values, error) {
		before, err1 := bench.ProcessorSeconds()
		s, err2 := m.stream(ctx, m.options.Seconds, m.options.Streams)
		after, err3 := bench.ProcessorSeconds()
		gigabits := s.rate * float64(m.options.Seconds) / 1e9
		used := 1e9 * (after.Busy - before.Busy)
		return values{whole.Name: s.rate, best.Name: s.best, cpu.Name: used / gigabits}, errors.Join(err1, err2, err3)
	}, whole, best, cpu)
}

// patience bounds short waits, also on a busy machine.
const patience = 30 * time.Second

// streamServer starts iperf3 in the server's pod. It may not listen yet; clients try again.
func (n *network) streamServer(ctx context.Context) (*lab.Process, error) {
	at := n.backend(streamPort)
	return n.server.Start(exec.CommandContext(ctx, "iperf3", "--server", "--bind", at.Addr().String(), "--port", strconv.Itoa(int(at.Port()))))
}

// streamed is how fast a stream was, in bit/s.
type streamed struct {
	rate float64 // received, over the whole time
	best float64 // sent, in the best tenth of a second
}

// errNotReady says that the server does not take a stream yet. iperf3 does not listen for
// a moment between two streams.
var errNotReady = errors.New("iperf3: the server is not ready")

func (n *network) stream(ctx context.Context, seconds, streams int) (streamed, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(seconds)*time.Second+2*patience)
	defer cancel()
	to := n.frontend(streamPort)
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		s, err := parseStream(n.client.Run(ctx, "iperf3", "--json", "--client", to.Addr().String(), "--port", strconv.Itoa(int(to.Port())),
			"--time", strconv.Itoa(seconds), "--interval", "0.1", "--parallel", strconv.Itoa(max(streams, 1))))
		if !errors.Is(err, errNotReady) || time.Now().After(deadline) {
			return s, err
		}
	}
}

// parseStream reads a report of iperf3. Its errors are in the report too.
func parseStream(report []byte, exit error) (s streamed, err error) {
	type rate struct {
		BitsPerSecond float64 `json:"bits_per_second"`
	}
	var r struct {
		Error     string `json:"error"`
		Intervals []struct {
			Sum rate `json:"sum"`
		} `json:"intervals"`
		End struct {
			Received rate `json:"sum_received"`
		} `json:"end"`
	}
	err = json.Unmarshal(report, &r)
	switch {
	case err == nil && (strings.HasPrefix(r.Error, "unable to connect to server") || strings.Contains(r.Error, "server is busy")):
		return s, fmt.Errorf("%w: %s", errNotReady, r.Error)
	case err == nil && r.Error != "":
		return s, fmt.Errorf("iperf3: %s", r.Error)
	case exit != nil:
		return s, exit
	case err != nil:
		return s, fmt.Errorf("iperf3: report: %w", err)
	case r.End.Received.BitsPerSecond <= 0 || len(r.Intervals) == 0:
		return s, errors.New("iperf3: report: nothing was received")
	}
	s.rate = r.End.Received.BitsPerSecond
	for _, i := range r.Intervals {
		s.best = max(s.best, i.Sum.BitsPerSecond)
	}
	return s, nil
}
