// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/netfilter/iptchains"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"
)

// Options configure Run and Remove.
type Options struct {
	// ExcludeCIDRs are ranges of addresses of IPVS virtual servers that stay:
	// ipvs.excludeCIDRs of kube-proxy's configuration.
	ExcludeCIDRs []netip.Prefix

	// KeepVirtualServers says that IPVS virtual servers and the interface kube-ipvs0 are in
	// use, by this proxy's IPVS mode, and that those routes are not which an earlier mode has
	// put in the place of its addresses ([Prepare]). OnlyVirtualServers says that an earlier
	// run of IPVS mode has left them, and that everything else belongs to a kube-proxy that
	// runs.
	KeepVirtualServers, OnlyVirtualServers bool

	// RestoreParameters is called before the interface kube-ipvs0 is removed. It puts back the
	// kernel's parameters that this proxy's IPVS mode has set, which the interface records.
	// It may be nil.
	RestoreParameters func() error

	// Removed is called with one line for each thing that was removed. It may be nil.
	Removed func(what string)

	// Failed is called with one line for each thing that could not be removed, with the
	// reason. It may be nil.
	Failed func(error)
}

// step removes one kind of thing. It is not repeated after a success, because later things
// belong to a kube-proxy that runs again.
type step func(context.Context) outcome

// outcome is the result of a step.
type outcome struct {
	removed  []string
	stays    []error // failures that are not tried again
	failed   error   // a failure that is tried again
	draining bool    // connections still use the rest
}

// drainPeriod is the interval at which [Run] checks whether connections have ended.
const drainPeriod = 5 * time.Second

// newPauses returns the pauses after failures: from 5 s to 5 min.
func newPauses() wait.Backoff {
	return wait.Backoff{Duration: drainPeriod, Factor: 2, Steps: 7, Cap: 5 * time.Minute}
}

// Run removes kube-proxy's objects in the calling thread's network namespace, and retries
// failures. It returns when only chains that other programs use are left, or when ctx ends;
// without IPVS and failures that is at once. The same failure is reported once. It must be
// called after all Services are programmed; it needs CAP_NET_ADMIN.
func Run(ctx context.Context, o Options) { repeat(ctx, o, o.steps(true)) }

// repeat repeats steps that fail or drain.
func repeat(ctx context.Context, o Options, steps []step) {
	reported, report := map[string]bool{}, o.Failed
	o.Failed = func(err error) {
		if text := err.Error(); !reported[text] && report != nil {
			reported[text] = true
			report(err)
		}
	}
	pauses := newPauses()
	for {
		var left []step
		failed := false
		for _, do := range steps {
			out := do(ctx)
			o.report(out)
			if out.draining || out.failed != nil {
				left = append(left, do)
			}
			failed = failed || out.failed != nil
		}
		if steps = left; len(steps) == 0 {
			return
		}
		pause := drainPeriod
		if failed {
			pause = pauses.Step()
		} else {
			pauses = newPauses()
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// Remove removes kube-proxy's objects in the calling thread's network namespace, including
// virtual servers with connections. The error joins all failures. It needs CAP_NET_ADMIN.
func Remove(ctx context.Context, o Options) error {
	var errs []error
	for _, do := range o.steps(false) {
		out := do(ctx)
		o.report(out)
		errs = append(append(errs, out.stays...), out.failed)
	}
	return errors.Join(errs...)
}

func (o *Options) report(out outcome) {
	for _, what := range out.removed {
		if o.Removed != nil {
			o.Removed(what)
		}
	}
	for _, err := range append(out.stays, out.failed) {
		if err != nil && o.Failed != nil {
			o.Failed(err)
		}
	}
}

// steps returns the steps that remove everything; with drain set, IPVS virtual servers only
// when they have no established connections. They are last, because rules use the IP sets.
func (o *Options) steps(drain bool) (all []step) {
	servers := &virtualServers{drain: drain, exclude: o.ExcludeCIDRs, restore: o.RestoreParameters}
	if o.OnlyVirtualServers {
		return []step{servers.remove}
	}
	for _, family := range []nfnl.Family{nfnl.IPv4, nfnl.IPv6} {
		table := nfnl.Table{Family: family, Name: "kube-proxy"}
		all = append(all, func(context.Context) outcome { return removeTable(table) })
	}
	for _, table := range iptchains.Tables() {
		all = append(all, func(ctx context.Context) (out outcome) {
			removed, err := table.Remove(ctx, kubeProxy)
			out.stays, out.failed = removed.Kept, err
			if removed.Chains > 0 {
				out.removed = []string{fmt.Sprintf("%d chains of %s", removed.Chains, table)}
			}
			return out
		})
	}
	if o.KeepVirtualServers {
		return append(all, func(ctx context.Context) outcome {
			return outcome{failed: errors.Join(removeSets(ctx), keepRoutes(nil))}
		})
	}
	return append(all, servers.remove)
}

// removeTable removes a table of kube-proxy's nftables mode.
func removeTable(table nfnl.Table) (out outcome) {
	name := fmt.Sprintf("nftables table %s %s", table.Family, table.Name)
	conn, err := nfnl.Dial(0)
	if err == nil {
		defer conn.Close()
		_, err = conn.Table(table)
	}
	if err == nil {
		var batch nfnl.Batch
		batch.DeleteTable(table)
		err = conn.Commit(0, &batch)
	}
	switch {
	case err == nil:
		out.removed = []string{name}
	case !errors.Is(err, unix.ENOENT) && !nfnl.IsUnsupported(err):
		out.failed = fmt.Errorf("removing kube-proxy's %s: %w", name, err)
	}
	return out
}

// kubeProxy is the owner of kube-proxy's chains.
var kubeProxy = iptchains.Owner{
	Name: "kube-proxy",
	Owns: func(chain string) bool {
		return slices.Contains(entered, chain) || slices.Contains(inner, chain) || serviceChain.MatchString(chain)
	},
	Entered: func(chain string) bool { return slices.Contains(entered, chain) },
}

// entered are kube-proxy's chains to which it jumps from built-in chains.
var entered = []string{
	"KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES", "KUBE-NODEPORTS", "KUBE-POSTROUTING",
	"KUBE-FORWARD", "KUBE-PROXY-FIREWALL",
	// In IPVS mode.
	"KUBE-NODE-PORT", "KUBE-IPVS-FILTER", "KUBE-IPVS-OUT-FILTER",
}

// inner are its other chains with fixed names.
var inner = []string{
	"KUBE-MARK-MASQ", "KUBE-PROXY-CANARY",
	// In IPVS mode; KUBE-FIRE-WALL up to Kubernetes 1.26.
	"KUBE-LOAD-BALANCER", "KUBE-SOURCE-RANGES-FIREWALL", "KUBE-FIRE-WALL",
}

// serviceChain matches its chains for Services and endpoints, with a hash in base 32;
// KUBE-XLB- up to Kubernetes 1.23.
var serviceChain = regexp.MustCompile(`^KUBE-(SVC|SVL|EXT|FW|SEP|XLB)-[A-Z2-7]{16}$`)

// ipsets are the sets of IPVS mode, without the prefixes for IPv4 and IPv6.
var ipsets = []string{
	"LOOP-BACK", "CLUSTER-IP", "EXTERNAL-IP", "EXTERNAL-IP-LOCAL",
	"LOAD-BALANCER", "LOAD-BALANCER-FW", "LOAD-BALANCER-LOCAL",
	"LOAD-BALANCER-SOURCE-IP", "LOAD-BALANCER-SOURCE-CIDR",
	"NODE-PORT-TCP", "NODE-PORT-LOCAL-TCP", "NODE-PORT-UDP", "NODE-PORT-LOCAL-UDP",
	"NODE-PORT-SCTP-HASH", "NODE-PORT-LOCAL-SCTP-HASH",
	"HEALTH-CHECK-NODE-PORT", "IPVS-IPS",
}

// dummy is the interface of IPVS mode that has the Services' addresses.
const dummy = "kube-ipvs0"
