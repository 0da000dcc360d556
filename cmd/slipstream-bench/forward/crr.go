// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"time"

	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/stats"
	"github.com/slipstream-proxy/slipstream/test/lab"
)

var (
	crrRate   = quantity{"crr_rate", "connections a second", PerSecond, More}
	crrMin    = quantity{"crr_min", "latency, minimum", Nanoseconds, Less}
	crrMedian = quantity{"crr_median", "latency, median", Nanoseconds, Less}
	crrMean   = quantity{"crr_mean", "latency, mean", Nanoseconds, Less}
	crrP99    = quantity{"crr_p99", "latency, 99th percentile", Nanoseconds, Less}
	crrStdDev = quantity{"crr_stddev", "latency, standard deviation", Nanoseconds, Less}
)

// CRR measures connections that carry one request and one response of a byte
// each, one after the other: as many a second as it does them, and how long each
// takes from the call of connect to the server's end of the connection. command
// starts a process that calls [RunPeer] with the arguments that follow.
func CRR(ctx context.Context, command []string, o CRROptions) (*Result, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	return run(ctx, o.Options, Result{Benchmark: "crr", CRR: &o}, func(w *world, r *Result) (err error) {
		server, err := w.requestServer(command)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, server.Kill()) }()
		m, err := w.turns(ctx, o.Rounds, r.settings(), func(ctx context.Context, _ Setting) (values, error) {
			return w.requests(ctx, command, o.Connections)
		})
		if err != nil {
			return err
		}
		return r.add(m, crrRate, crrMin, crrMedian, crrMean, crrP99, crrStdDev)
	})
}

// requestServer starts the server in its pod. It gets a socket that listens
// already, so there is nothing to wait for.
func (w *world) requestServer(command []string) (*lab.Process, error) {
	var listener *os.File
	err := w.server.Do(func() (err error) { listener, err = listen(w.backend(requestPort)); return err })
	if err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	defer listener.Close()
	cmd := peerCommand(context.Background(), command, peerServer)
	cmd.Stderr = os.Stderr
	cmd.ExtraFiles = []*os.File{listener}
	return w.server.Start(cmd)
}

// requests has a client make connections, and sums up how they went.
func (w *world) requests(ctx context.Context, command []string, n int) (values, error) {
	ctx, cancel := context.WithTimeout(ctx, patience+time.Duration(n)*10*time.Millisecond)
	defer cancel()
	cmd := peerCommand(ctx, command, peerClient, w.frontend(requestPort).String(), strconv.Itoa(n))
	out, err := w.client.Run(ctx, cmd.Path, cmd.Args[1:]...)
	if err != nil {
		return nil, err
	}
	var report clientReport
	if err := json.Unmarshal(out, &report); err != nil {
		return nil, fmt.Errorf("client: report: %w", err)
	}
	if len(report.Took) != n {
		return nil, fmt.Errorf("client: report: %d connections, want %d", len(report.Took), n)
	}
	return values{
		crrRate.name:   float64(n) / report.Elapsed.Seconds(),
		crrMin.name:    float64(slices.Min(report.Took)),
		crrMedian.name: float64(stats.Median(report.Took)),
		crrMean.name:   stats.Mean(report.Took),
		crrP99.name:    float64(stats.Percentile(report.Took, 99)),
		crrStdDev.name: stats.StdDev(report.Took),
	}, nil
}

func peerCommand(ctx context.Context, command []string, args ...string) *exec.Cmd {
	args = append(slices.Clone(command[1:]), args...)
	return exec.CommandContext(ctx, command[0], args...)
}
