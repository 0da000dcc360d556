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
)

// Options say what [Sync] measures. Their JSON is part of its result.
type Options struct {
	Services    int    `json:"services"`
	Endpoints   int    `json:"endpoints_per_service"` // in each address family
	External    int    `json:"external_percent"`      // of the Services, see package cluster
	Family      string `json:"family"`                // one of Families
	Mode        string `json:"mode"`                  // one of Modes
	Repetitions int    `json:"repetitions"`           // of each kind of change, in each run
	Runs        int    `json:"runs"`                  // of everything, each in new processes
	Seed        uint64 `json:"seed"`
	Baseline    string `json:"baseline"` // one of Baselines

	// BaselineTimeout limits one call of the baseline's command, and the time that is
	// spent on repeating changes with it. 0 is without limit.
	BaselineTimeout time.Duration `json:"baseline_timeout_ns"`

	// Verify compares what the kernel has in the end with what it should have. Reading
	// the kernel's sets takes a time that is quadratic in their size.
	Verify bool `json:"verify"`

	// ProfileDir is where CPU and heap profiles of Slipstream's steps are written; empty
	// for none. Profiling costs a little itself.
	ProfileDir string `json:"profile_dir,omitempty"`
}

// The values of Options.Baseline.
const (
	BaselineAuto = "auto" // on for up to autoBaseline endpoints
	BaselineOn   = "on"
	BaselineOff  = "off"
)

// Baselines lists the values of Options.Baseline.
var Baselines = []string{BaselineAuto, BaselineOn, BaselineOff}

// autoBaseline is the number of endpoints above which the baseline takes minutes.
const autoBaseline = 300_000

// The values of Options.Family.
const (
	FamilyIPv4 = "ipv4"
	FamilyIPv6 = "ipv6"
	FamilyDual = "dual"
)

// Families lists the values of Options.Family.
var Families = []string{FamilyIPv4, FamilyIPv6, FamilyDual}

var families = map[string][]cluster.Family{
	FamilyIPv4: {cluster.IPv4},
	FamilyIPv6: {cluster.IPv6},
	FamilyDual: {cluster.IPv4, cluster.IPv6},
}

// modeIPTables is the variant of iptables that this machine uses.
const modeIPTables = "iptables"

// modes open the dataplanes that can be measured.
var modes = map[string]func(context.Context) (dataplane.Dataplane, error){
	"nftables":        func(context.Context) (dataplane.Dataplane, error) { return nftables.New(dataplaneConfig) },
	"iptables-legacy": func(ctx context.Context) (dataplane.Dataplane, error) { return openIPTables(ctx, iptables.Legacy) },
	"iptables-nft":    func(ctx context.Context) (dataplane.Dataplane, error) { return openIPTables(ctx, iptables.NFT) },
}

// dataplaneConfig is kube-proxy's default.
var dataplaneConfig = dataplane.Config{MasqueradeBit: dataplane.DefaultMasqueradeBit}

func openIPTables(ctx context.Context, v iptables.Variant) (dataplane.Dataplane, error) {
	return iptables.New(ctx, dataplaneConfig, iptables.Options{Variant: v})
}

// Modes lists the values of Options.Mode.
func Modes() []string {
	all := append(slices.Collect(maps.Keys(modes)), modeIPTables)
	slices.Sort(all)
	return all
}

// resolve finds out which variant of iptables is meant. The namespaces in which it is
// measured have no rules to tell it by.
func (o *Options) resolve(ctx context.Context) error {
	if o.Mode != modeIPTables {
		return nil
	}
	v, err := iptables.Detect(ctx, 0)
	o.Mode = "iptables-" + string(v)
	return err
}

const (
	maxEndpoints   = 65_536 // of one Service; the limit of a pool
	maxRepetitions = cluster.MaxServices / 8
)

// validate finds values that cannot be measured; it names them as flags.
func (o *Options) validate() error {
	if err := errors.Join(
		bench.Within("--services", o.Services, 1, cluster.MaxServices-maxRepetitions),
		bench.Within("--endpoints", o.Endpoints, 1, maxEndpoints),
		bench.Within("--external", o.External, 0, 100),
		bench.Within("--repetitions", o.Repetitions, 1, maxRepetitions),
		bench.Within("--runs", o.Runs, 1, 1000),
		bench.OneOf("--family", o.Family, Families...),
		bench.OneOf("--mode", o.Mode, Modes()...),
		bench.OneOf("--baseline", o.Baseline, Baselines...),
	); err != nil {
		return err
	}
	if n := o.Services * o.Endpoints; n > cluster.MaxEndpoints {
		return fmt.Errorf("--endpoints: %d Services of %d endpoints are %d in all, more than %d", o.Services, o.Endpoints, n, cluster.MaxEndpoints)
	}
	if n := o.Services * o.External / 100; n > cluster.MaxExternal {
		return fmt.Errorf("--external: %d Services would have a NodePort, more than %d", n, cluster.MaxExternal)
	}
	return nil
}

// skipBaseline says why the baseline is not measured; empty when it is.
func (o *Options) skipBaseline() string {
	switch n := o.Services * o.Endpoints * len(families[o.Family]); {
	case o.Baseline == BaselineOff:
		return "--baseline off"
	case o.Baseline == BaselineAuto && n > autoBaseline:
		return fmt.Sprintf("it would take minutes with %d endpoints; --baseline on to wait", n)
	}
	return ""
}

// iptables says whether the mode is one of iptables.
func (o *Options) iptables() bool { return strings.HasPrefix(o.Mode, modeIPTables) }

func (o *Options) newCluster() *cluster.Cluster {
	return cluster.New(cluster.Config{
		Families: families[o.Family], Services: o.Services, Endpoints: o.Endpoints, External: o.External, Seed: o.Seed,
	})
}
