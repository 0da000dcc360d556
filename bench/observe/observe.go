// SPDX-License-Identifier: Apache-2.0

// Package observe measures what it costs the proxy that somebody looks: a page that is open, and a
// scrape of the metrics.
//
// One node, a network namespace (package lab), has many Services. A client makes connections to some of
// them at a fixed rate, as long as all is measured. A new proxy runs in each turn.
package observe

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/slipstream-proxy/slipstream/bench/bench"
	"github.com/slipstream-proxy/slipstream/bench/cluster"
	"github.com/spf13/pflag"
)

// Options say what is measured. Their JSON is part of the result.
type Options struct {
	bench.Plan
	Settle    int      `json:"seconds_before_turn"` // from the first question on
	Before    int      `json:"seconds_before_all"`  // of connections, for conntrack to have its usual number of entries
	Observers []string `json:"observers"`           // of Observers
	Services  int      `json:"services"`
	Endpoints int      `json:"endpoints"`
	Busy      int      `json:"busy_services"`
	Rate      int      `json:"connections_per_second"`
}

// nobody is the observer that does not exist.
const nobody = "nobody"

// views are what the page asks for in each view, and how often (assets/page.js).
var views = map[string]struct {
	paths []string
	pause time.Duration
}{
	"status":   {[]string{"status", "changes"}, 15 * time.Second},
	"services": {[]string{"services?search=&sort=rate&page=0&descending="}, 15 * time.Second},
	"service":  {[]string{"services/bench/" + cluster.Name(0)}, 15 * time.Second},
	"metrics":  {},
}

// Observers lists the values of Options.Observers, in the order of measuring: nobody, metrics that are
// scraped, and these with a view of the page.
var Observers = []string{nobody, "metrics", "status", "services", "service"}

// AddFlags adds the flags.
func (o *Options) AddFlags(f *pflag.FlagSet) {
	o.Plan.AddFlags(f, 3, 60)
	o.Settle, o.Before, o.Busy = 30, 120, 50
	f.StringSliceVar(&o.Observers, "observers", Observers, "who looks; the first is what others are compared with")
	f.IntVar(&o.Services, "services", 10_000, "Services")
	f.IntVar(&o.Endpoints, "endpoints", 10, "endpoints of each")
	f.IntVar(&o.Rate, "rate", 1000, "connections a second, to 50 of the Services together")
}

// Validate finds values that cannot be measured.
func (o *Options) Validate(context.Context) error {
	return errors.Join(
		o.Plan.Validate(),
		bench.Within("--services", o.Services, o.Busy, 60_000),
		bench.Within("--endpoints", o.Endpoints, 1, 60),
		bench.Within("--rate", o.Rate, 1, 20_000),
		bench.SomeOf("--observers", o.Observers, Observers...),
	)
}

var (
	cpu     = bench.Quantity("proxy_cpu", "processor time of the proxy, of one processor", bench.Percent, bench.Less)
	memory  = bench.Quantity("proxy_memory", "its memory, the most in a turn", bench.Bytes, bench.Less)
	peak    = bench.Quantity("proxy_peak", "its memory, the most since its start", bench.Bytes, bench.Less)
	rate    = bench.Quantity("rate", "connections a second", bench.PerSecond, bench.Less)
	tracked = bench.Quantity("tracked", "entries in conntrack", bench.Count, bench.Less)
)

// Measure measures each observer in turns, each with a new proxy.
func (o *Options) Measure(ctx context.Context, r *bench.Result) error {
	r.Title = fmt.Sprintf("observe: %s Services of %d endpoints, %s connections/s to %d of them; %d rounds of turns of %d s",
		bench.Thousands(o.Services), o.Endpoints, bench.Thousands(o.Rate), o.Busy, o.Rounds, o.Seconds)
	r.AddSubjects(o.Observers...)
	n, err := o.build(ctx)
	if err != nil {
		return err
	}
	err = r.InTurns(ctx, o.Rounds, func(_, i int, into bench.Samples) error { return n.turn(ctx, o.Observers[i], into) }, cpu, memory, peak, rate, tracked)
	return errors.Join(err, n.close())
}
