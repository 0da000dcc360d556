// SPDX-License-Identifier: Apache-2.0

package programming

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/bench"
	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/cluster"
	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/iptables"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/nftables"
	"github.com/spf13/pflag"
)

// Options say what [Sync] measures: [Options.AddFlags] describes each. Their JSON is part
// of its result.
type Options struct {
	Services        int           `json:"services"`
	Endpoints       int           `json:"endpoints_per_service"`
	External        int           `json:"external_percent"`
	Family          string        `json:"family"`
	Mode            string        `json:"mode"`
	Repetitions     int           `json:"repetitions"`
	Runs            int           `json:"runs"`
	Seed            uint64        `json:"seed"`
	Baseline        string        `json:"baseline"`
	BaselineTimeout time.Duration `json:"baseline_timeout_ns"`
	Verify          bool          `json:"verify"`
	ProfileDir      string        `json:"profile_dir,omitempty"`
}

// AddFlags adds a flag for each of the options.
func (o *Options) AddFlags(f *pflag.FlagSet) {
	f.IntVar(&o.Services, "services", 1000, "number of Services")
	f.IntVar(&o.Endpoints, "endpoints", 10, "number of endpoints of each Service, in each address family")
	f.IntVar(&o.External, "external", 0, "percentage of Services of type LoadBalancer, with NodePort, load balancer IP, source ranges, externalTrafficPolicy Local and session affinity; the baseline has only their ClusterIPs")
	f.StringVar(&o.Family, "family", FamilyIPv4, "address family of the Services: "+strings.Join(familyNames, ", "))
	f.StringVar(&o.Mode, "mode", "nftables", "what is programmed: "+strings.Join(modeNames(), ", ")+"; iptables is the variant that this machine uses")
	f.IntVar(&o.Repetitions, "repetitions", 1000, "how often to make each kind of change in each run; fewer where that takes long")
	f.IntVar(&o.Runs, "runs", 1, "how often to do everything, in new processes; medians are reported")
	f.Uint64Var(&o.Seed, "seed", 1, "seed of the random choices")
	f.StringVar(&o.Baseline, "baseline", baselineAuto, "whether to measure rules in the shape of kube-proxy's: "+strings.Join(baselineNames, ", ")+"; auto leaves them out where it would take minutes")
	f.DurationVar(&o.BaselineTimeout, "baseline-timeout", 3*time.Minute, "longest time for one call of nft or iptables-restore (0: no limit)")
	f.BoolVar(&o.Verify, "verify", false, "compare what the kernel has in the end with what was meant; slow for more than 100,000 endpoints")
	f.StringVar(&o.ProfileDir, "profile", "", "directory to write CPU and heap profiles of slipstream's steps to, for go tool pprof")
}

const (
	FamilyIPv4 = "ipv4"
	FamilyIPv6 = "ipv6"
	FamilyDual = "dual"
)

var (
	familyNames = []string{FamilyIPv4, FamilyIPv6, FamilyDual}
	families    = map[string][]cluster.Family{
		FamilyIPv4: {cluster.IPv4}, FamilyIPv6: {cluster.IPv6}, FamilyDual: {cluster.IPv4, cluster.IPv6},
	}
)

// Whether the baseline is measured: auto is on for up to autoBaseline endpoints.
const (
	baselineAuto = "auto"
	baselineOn   = "on"
	baselineOff  = "off"

	autoBaseline = 300_000
)

var baselineNames = []string{baselineAuto, baselineOn, baselineOff}

// modeIPTables is the variant of iptables that this machine uses.
const modeIPTables = "iptables"

var modes = map[string]func(context.Context) (dataplane.Dataplane, error){
	"nftables":        func(context.Context) (dataplane.Dataplane, error) { return nftables.New(dataplaneConfig) },
	"iptables-legacy": func(ctx context.Context) (dataplane.Dataplane, error) { return openIPTables(ctx, iptables.Legacy) },
	"iptables-nft":    func(ctx context.Context) (dataplane.Dataplane, error) { return openIPTables(ctx, iptables.NFT) },
}

var dataplaneConfig = dataplane.Config{MasqueradeBit: dataplane.DefaultMasqueradeBit}

func openIPTables(ctx context.Context, v iptables.Variant) (dataplane.Dataplane, error) {
	return iptables.New(ctx, dataplaneConfig, iptables.Options{Variant: v})
}

func modeNames() []string { return append([]string{modeIPTables}, slices.Sorted(maps.Keys(modes))...) }

// validate finds values that cannot be measured; it names them as flags. It replaces the
// mode iptables by the variant that is meant: the namespaces in which it is measured have
// no rules to tell it by.
func (o *Options) validate(ctx context.Context) error {
	const maxRepetitions = cluster.MaxServices / 8
	if err := errors.Join(
		bench.Within("--services", o.Services, 1, cluster.MaxServices-maxRepetitions),
		bench.Within("--endpoints", o.Endpoints, 1, 65_536), // the limit of a pool
		bench.Within("--external", o.External, 0, 100),
		bench.Within("--repetitions", o.Repetitions, 1, maxRepetitions),
		bench.Within("--runs", o.Runs, 1, 1000),
		bench.OneOf("--family", o.Family, familyNames...),
		bench.OneOf("--mode", o.Mode, modeNames()...),
		bench.OneOf("--baseline", o.Baseline, baselineNames...),
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

// skipBaseline says why the baseline is not measured; empty when it is.
func (o *Options) skipBaseline() string {
	switch n := o.Services * o.Endpoints * len(families[o.Family]); {
	case o.Baseline == baselineOff:
		return "--baseline off"
	case o.Baseline == baselineAuto && n > autoBaseline:
		return fmt.Sprintf("it would take minutes with %d endpoints; --baseline on to wait", n)
	}
	return ""
}

func (o *Options) iptables() bool { return strings.HasPrefix(o.Mode, modeIPTables) }

func (o *Options) newCluster() *cluster.Cluster {
	return cluster.New(cluster.Config{
		Families: families[o.Family], Services: o.Services, Endpoints: o.Endpoints, External: o.External, Seed: o.Seed,
	})
}
