// SPDX-License-Identifier: Apache-2.0

// Package programming measures Slipstream's cost of programming the kernel of this
// machine.
//
// Slipstream runs in a child process, so that memory numbers are its own, and in a network
// namespace of its own. The measured code is the product's: package desired and a
// dataplane, called as package proxy calls them.
package programming

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/slipstream-proxy/slipstream/bench/bench"
	"github.com/slipstream-proxy/slipstream/bench/cluster"
	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/iptables"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/ipvs"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/nftables"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"github.com/spf13/pflag"
)

const (
	rounds       = 5 // parts of the changes of a run
	burstChanges = 1000
)

// Names of series. Those of a change's processor time and elements have these suffixes.
const (
	coldStart        = "cold_start"
	restart          = "restart"
	endpointReplaced = "endpoint_replaced"
	endpointAdded    = "endpoint_added"
	endpointRemoved  = "endpoint_removed"
	serviceAdded     = "service_added"
	serviceRemoved   = "service_removed"
	burst            = "burst"
	peakCold         = "peak_rss_cold_start"

	cpuSuffix      = "_cpu"
	elementsSuffix = "_elements"
)

var changes = []struct{ name, text string }{
	{endpointReplaced, "one endpoint replaced"},
	{endpointAdded, "one endpoint added"},
	{endpointRemoved, "one endpoint removed"},
	{serviceAdded, "one Service added"},
	{serviceRemoved, "one Service removed"},
}

func series() (all []bench.Series) {
	add := func(name, text string, u bench.Unit, show ...bench.Statistic) {
		all = append(all, bench.Series{Name: name, Text: text, Unit: u, Better: bench.Less, Show: show})
	}
	steps := func(name string) {
		add(name+"_state", "  objects into the desired state", bench.Nanoseconds)
		add(name+"_full", "  full description", bench.Nanoseconds)
		add(name+"_kernel", "  encoding, and the kernel", bench.Nanoseconds)
	}
	add(coldStart, "cold start", bench.Nanoseconds, bench.P50, bench.Lowest, bench.Highest)
	steps(coldStart)
	add(coldStart+elementsSuffix, "  elements written", bench.Count)
	add(coldStart+"_bytes", "  bytes sent", bench.Bytes)
	add(restart, "restart over existing rules", bench.Nanoseconds, bench.P50, bench.Lowest, bench.Highest)
	steps(restart)
	for _, c := range changes {
		add(c.name, c.text, bench.Nanoseconds, bench.P50, bench.P99, bench.Highest)
		add(c.name+cpuSuffix, "  processor time", bench.Nanoseconds, bench.Mean)
		add(c.name+elementsSuffix, "  elements written", bench.Count)
	}
	add(burst, fmt.Sprintf("burst of %s endpoints replaced", bench.Thousands(burstChanges)), bench.Nanoseconds, bench.P50, bench.Highest)
	add(burst+elementsSuffix, "  elements written", bench.Count)
	add(peakCold, "peak RSS of the cold start", bench.Bytes)
	add("peak_rss", "peak RSS of everything", bench.Bytes)
	add("rss_cold_start", "RSS at rest after the cold start", bench.Bytes)
	add("rss_file_cold_start", "  of it the binary", bench.Bytes)
	add("heap_cold_start", "  reachable heap", bench.Bytes)
	add("rss", "RSS at rest in the end", bench.Bytes)
	return all
}

// Measure measures the cost of programming the kernel.
func (o *Options) Measure(ctx context.Context, r *bench.Result) error {
	external := ""
	if o.External > 0 {
		external = fmt.Sprintf(", %d %% of them external", o.External)
	}
	r.Title = fmt.Sprintf("%s Services x %s endpoints%s, mode %s, up to %s repetitions of each change, runs: %d",
		bench.Thousands(o.Services), bench.Thousands(o.Endpoints), external, o.Mode, bench.Thousands(o.Repetitions), o.Runs)
	r.AddSubjects("slipstream")
	err := r.InTurns(ctx, o.Runs, func(_, _ int, into bench.Samples) error {
		samples, err := o.runChild(ctx)
		for name, values := range samples {
			into.Add(name, values...)
		}
		return err
	}, series()...)
	if err != nil {
		return err
	}
	for _, c := range changes {
		if r.Find(c.name) == nil {
			return fmt.Errorf("nothing was measured of %q", c.text)
		}
	}
	return nil
}

// runChild measures Slipstream in a new process and network namespace.
func (o *Options) runChild(ctx context.Context) (all bench.Samples, err error) {
	options, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	ns, err := lab.NewNamespace()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, ns.Close()) }()
	out, err := ns.Run(ctx, o.Child[0], append(o.Child[1:len(o.Child):len(o.Child)], string(options))...)
	if err != nil {
		return nil, err
	}
	return all, json.Unmarshal(out, &all)
}

// Options say what is measured: [Options.AddFlags] describes each. Their JSON is part
// of the result.
type Options struct {
	Services    int    `json:"services"`
	Endpoints   int    `json:"endpoints_per_service"`
	External    int    `json:"external_percent"`
	Mode        string `json:"mode"`
	Repetitions int    `json:"repetitions"`
	Runs        int    `json:"runs"`

	Child []string `json:"-"` // starts a process that calls [RunChild] with the argument that follows
}

// AddFlags adds a flag for each of the options.
func (o *Options) AddFlags(f *pflag.FlagSet) {
	o.Child = []string{bench.Beside("bench-sync")}
	f.IntVar(&o.Services, "services", 1000, "number of Services")
	f.IntVar(&o.Endpoints, "endpoints", 10, "number of endpoints of each Service")
	f.IntVar(&o.External, "external", 0, "percentage of Services of type LoadBalancer, with NodePort, load balancer IP, source ranges, externalTrafficPolicy Local and session affinity")
	f.StringVar(&o.Mode, "mode", "nftables", "proxy mode: "+strings.Join(modeNames(), ", ")+"; iptables is the variant that this machine uses")
	f.IntVar(&o.Repetitions, "repetitions", 1000, "how often to make each kind of change in each run; fewer where that takes long")
	f.IntVar(&o.Runs, "runs", 1, "how often to do everything, in new processes; medians are reported")
}

// modeIPTables is the variant of iptables that this machine uses.
const modeIPTables = "iptables"

var modes = map[string]func(context.Context) (dataplane.Dataplane, error){
	"ipvs":            func(context.Context) (dataplane.Dataplane, error) { return ipvs.New(dataplaneConfig, ipvs.Options{}) },
	"nftables":        func(context.Context) (dataplane.Dataplane, error) { return nftables.New(dataplaneConfig) },
	"iptables-legacy": func(ctx context.Context) (dataplane.Dataplane, error) { return openIPTables(ctx, iptables.Legacy) },
	"iptables-nft":    func(ctx context.Context) (dataplane.Dataplane, error) { return openIPTables(ctx, iptables.NFT) },
}

var dataplaneConfig = dataplane.Config{MasqueradeBit: dataplane.DefaultMasqueradeBit}

func openIPTables(ctx context.Context, v iptables.Variant) (dataplane.Dataplane, error) {
	return iptables.New(ctx, dataplaneConfig, iptables.Options{Variant: v})
}

func modeNames() []string { return append([]string{modeIPTables}, slices.Sorted(maps.Keys(modes))...) }

// Validate finds values that cannot be measured; it names them as flags. It replaces the
// mode iptables by the variant that is meant: the namespaces in which it is measured have
// no rules that would show it.
func (o *Options) Validate(ctx context.Context) error {
	const maxRepetitions = cluster.MaxServices / 8
	if err := errors.Join(
		bench.Within("--services", o.Services, 1, cluster.MaxServices-maxRepetitions),
		bench.Within("--endpoints", o.Endpoints, 1, 65_536), // the limit of a pool
		bench.Within("--external", o.External, 0, 100),
		bench.Within("--repetitions", o.Repetitions, 1, maxRepetitions),
		bench.Within("--runs", o.Runs, 1, 1000),
		bench.OneOf("--mode", o.Mode, modeNames()...),
	); err != nil {
		return err
	}
	if n := o.Services * o.Endpoints; n > cluster.MaxEndpoints {
		return fmt.Errorf("--endpoints: %d Services of %d endpoints are %d in all, more than %d", o.Services, o.Endpoints, n, cluster.MaxEndpoints)
	}
	if n := o.Services * o.External / 100; n > cluster.MaxExternal {
		return fmt.Errorf("--external: %d Services would have a NodePort, more than %d", n, cluster.MaxExternal)
	}
	if o.Mode == modeIPTables {
		v, err := iptables.Detect(ctx, 0)
		if err != nil {
			return fmt.Errorf("--mode: %w", err)
		}
		o.Mode = "iptables-" + string(v)
	}
	return nil
}
