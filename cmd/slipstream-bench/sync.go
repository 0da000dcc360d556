// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"strings"
	"time"

	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/bench"
	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/programming"
	"github.com/spf13/cobra"
)

func newSync() *cobra.Command {
	var o programming.Options
	cmd := &cobra.Command{
		Use:   "sync --services N --endpoints M",
		Short: "Measure programming the kernel: cold start, single changes, memory",
		Long: `Sync makes up a cluster of N Services with M endpoints each and measures what it
costs to program this machine's kernel with it: a cold start, a restart, single
changes to random Services, a burst of changes, and memory.

Next to it the same Services are programmed as rules in the shape of kube-proxy's (a
chain for each Service and each endpoint). In mode nftables the nft command loads them,
as in kube-proxy's nftables mode. In modes iptables there is a list of all Services, and
iptables-restore loads it with the chains; for a change, only the list and the chains of
the Service (KEP-3453).

It needs root. Both are measured in network namespaces of their own, which are deleted
afterwards; the machine's own rules are not touched. The time of a change is from handing
the changed objects over until the kernel uses them. Measure on a quiet machine: the load
average is in the header.`,
		Example: `  slipstream-bench sync --services 1000 --endpoints 10
  slipstream-bench sync --services 10000 --endpoints 10 --runs 5 -o json
  slipstream-bench sync --services 100000 --endpoints 10 --baseline off
  slipstream-bench sync --services 10000 --mode iptables --repetitions 10`,
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.IntVar(&o.Services, "services", 1000, "number of Services")
	f.IntVar(&o.Endpoints, "endpoints", 10, "number of endpoints of each Service, in each address family")
	f.IntVar(&o.External, "external", 0, "percentage of Services of type LoadBalancer, with NodePort, load balancer IP, source ranges, externalTrafficPolicy Local and session affinity; the baseline has only their ClusterIPs")
	f.StringVar(&o.Family, "family", programming.FamilyIPv4, "address family of the Services: "+strings.Join(programming.Families, ", "))
	f.StringVar(&o.Mode, "mode", "nftables", "what is programmed: "+strings.Join(programming.Modes(), ", ")+"; iptables is the variant that this machine uses")
	f.IntVar(&o.Repetitions, "repetitions", 1000, "how often to make each kind of change in each run; fewer where that takes long")
	f.IntVar(&o.Runs, "runs", 1, "how often to do everything, in new processes; medians are reported")
	f.Uint64Var(&o.Seed, "seed", 1, "seed of the random choices")
	f.StringVar(&o.Baseline, "baseline", programming.BaselineAuto, "whether to measure rules in the shape of kube-proxy's: "+strings.Join(programming.Baselines, ", ")+"; auto leaves them out where it would take minutes")
	f.DurationVar(&o.BaselineTimeout, "baseline-timeout", 3*time.Minute, "longest time for one call of nft or iptables-restore (0: no limit)")
	f.BoolVar(&o.Verify, "verify", false, "compare what the kernel has in the end with what was meant; slow for more than 100,000 endpoints")
	f.StringVar(&o.ProfileDir, "profile", "", "directory to write CPU and heap profiles of slipstream's steps to, for go tool pprof")
	return measuring(cmd, func(ctx context.Context) (*bench.Result, error) { return programming.Sync(ctx, self("child"), o) })
}
