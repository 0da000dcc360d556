// SPDX-License-Identifier: Apache-2.0

// Package balance measures what the choice of endpoints does for clients of Services, one
// endpoint of which is slower than the others, or fails.
//
// Some nodes, all of them network namespaces (package lab), run a Service proxy each. A pod on
// each node makes connections to the Service at random times (a Poisson process), however long
// the earlier ones take. Each connection is one request. A server handles one request at a time
// and takes a fixed time for it, so requests queue.
package balance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/slipstream-proxy/slipstream/bench/bench"
	"github.com/spf13/pflag"
)

// Options say what is measured. A turn is as long again, 10 s at most, before it is measured.
type Options struct {
	bench.Plan
	Schedulers []string      `json:"schedulers"` // of Schedulers
	Nodes      int           `json:"nodes"`
	Endpoints  int           `json:"endpoints"`
	Rate       int           `json:"connections_per_second"` // of all nodes together
	Service    time.Duration `json:"service_time_ns"`
	Slow       int           `json:"slow"` // service time of the slow endpoint, in multiples of Service
	Idle       int           `json:"idle_services"`
	Failing    int           `json:"failing_seconds"` // how long Services with a failing endpoint are measured
}

// Schedulers lists the values of Options.Schedulers, in the order of measuring. "ipvs-lc" is
// Slipstream's IPVS mode with the kernel's lc, the others are nftables mode; "detection" is random with outlier detection.
var Schedulers = []string{"random", "rr", ipvsLC, "lc", detection}

const ipvsLC, detection = "ipvs-lc", "detection"

// AddFlags adds the flags.
func (o *Options) AddFlags(f *pflag.FlagSet) {
	o.Plan.AddFlags(f, 5, 30)
	f.StringSliceVar(&o.Schedulers, "schedulers", Schedulers, "what to compare; the first is what others are compared with")
	f.IntVar(&o.Nodes, "nodes", 3, "nodes, each with a proxy and a client")
	f.IntVar(&o.Endpoints, "endpoints", 8, "endpoints of the Service")
	f.IntVar(&o.Rate, "rate", 72, "connections a second, of all nodes together")
	f.DurationVar(&o.Service, "service-time", 10*time.Millisecond, "time that a request takes at an endpoint")
	f.IntVar(&o.Slow, "slow", 10, "how many times as long it takes at the slow endpoint")
	f.IntVar(&o.Failing, "failing-seconds", 10, "length of the part of a turn with failing endpoints, 0 for none")
	f.IntVar(&o.Idle, "idle-services", 0, "other Services, of 10 endpoints each, without connections")
}

// Validate finds values that cannot be measured.
func (o *Options) Validate(context.Context) error {
	return errors.Join(
		o.Plan.Validate(),
		bench.Within("--nodes", o.Nodes, 1, 9),
		bench.Within("--endpoints", o.Endpoints, 1, 200),
		bench.Within("--rate", o.Rate, 1, 100_000),
		bench.Within("--slow", o.Slow, 1, 1000),
		bench.Within("--failing-seconds", o.Failing, 0, 600),
		bench.Within("--idle-services", o.Idle, 0, 20_000),
		bench.SomeOf("--schedulers", o.Schedulers, Schedulers...),
	)
}

var (
	p50   = bench.Quantity("latency_p50", "median latency", bench.Nanoseconds, bench.Less)
	p99   = bench.Quantity("latency_p99", "99th percentile of latency", bench.Nanoseconds, bench.Less)
	share = bench.Quantity("slow_share", "requests to the slow endpoint", bench.Percent, bench.Less)
	cpu   = bench.Quantity("proxy_cpu", "processor time of a proxy, of one processor", bench.Percent, bench.Less)
)

// Measure measures each scheduler in turns, each with new nodes.
func (o *Options) Measure(ctx context.Context, r *bench.Result) error {
	r.Title = fmt.Sprintf(
		"balance: %d nodes, %d endpoints of one worker, one of them %d times slower than %v, %s connections/s; %d rounds of turns of %d s",
		o.Nodes, o.Endpoints, o.Slow, o.Service, bench.Thousands(o.Rate), o.Rounds, o.Seconds)
	if o.Idle > 0 {
		r.Title += fmt.Sprintf("; %s idle Services", bench.Thousands(o.Idle))
	}
	for _, s := range o.Schedulers {
		if _, err := os.Stat("/proc/net/ip_vs"); s == ipvsLC && err != nil {
			r.Notes = append(r.Notes, "this kernel has no IPVS, so "+s+" is not measured")
			continue
		}
		r.AddSubjects(s)
	}
	series := []bench.Series{p50, p99, share, cpu}
	if o.Failing > 0 {
		r.Title += fmt.Sprintf(", then of %d s with an endpoint that fails", o.Failing)
		for _, f := range failures {
			series = append(series, f.series)
		}
	}
	return r.InTurns(ctx, o.Rounds, func(round, i int, into bench.Samples) error {
		t, err := o.turn(ctx, r.Subjects[i].Name, uint64(round))
		if err != nil {
			return err
		}
		into.Add(p50.Name, bench.Percentile(t.latencies, 50))
		into.Add(p99.Name, bench.Percentile(t.latencies, 99))
		into.Add(share.Name, 100*float64(t.slow)/float64(len(t.latencies)))
		into.Add(cpu.Name, 100*t.used)
		if o.Failing > 0 {
			for i, f := range failures {
				into.Add(f.series.Name, 100*float64(t.failed[i])/float64(t.requests[i]))
			}
		}
		return nil
	}, series...)
}
