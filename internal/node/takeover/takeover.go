// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"k8s.io/apimachinery/pkg/util/wait"
)

// Options say what is not kube-proxy's, and who wants to know.
type Options struct {
	// ExcludeCIDRs are ranges of addresses whose IPVS virtual servers are somebody
	// else's: ipvs.excludeCIDRs of kube-proxy's configuration.
	ExcludeCIDRs []netip.Prefix

	// Removed is told in one line each what has been removed. It may be nil.
	Removed func(what string)

	// Failed is told in one line each what could not be removed, and why. It may be
	// nil.
	Failed func(error)

	owner *Owner
	again *bool // set when something failed that may go well another time
}

// step removes a part of what there is; draining says that connections use the rest of
// it. A part that is gone is not removed again, as it is somebody's who came later then:
// of a kube-proxy that runs again.
type step func(Options) (draining bool)

// drainPeriod is how often [Run] looks whether connections have ended.
const drainPeriod = 5 * time.Second

// newPauses is how long to wait while something fails, until all that was left is tried
// again: from 5 s to 5 min.
func newPauses() wait.Backoff {
	return wait.Backoff{Duration: drainPeriod, Factor: 2, Steps: 7, Cap: 5 * time.Minute}
}

// Run removes what kube-proxy has left in the calling thread's network namespace. It
// returns when nothing is left but chains that somebody else uses, or when ctx ends: that
// is at once, unless there is IPVS or something fails, which is tried again. Failed is told
// the same thing once. Call it when all Services are programmed; it needs CAP_NET_ADMIN. It
// is for one goroutine at a time.
func Run(ctx context.Context, o Options) {
	o.owner = &kubeProxy
	repeat(ctx, o, o.steps(true))
}

// repeat takes steps until nothing has failed that may go well another time, and nothing
// is draining.
func repeat(ctx context.Context, o Options, steps []step) {
	told, tell := map[string]bool{}, o.Failed
	o.Failed = func(err error) {
		if text := err.Error(); !told[text] && tell != nil {
			told[text] = true
			tell(err)
		}
	}
	pauses := newPauses()
	for {
		var left []step
		failed := false
		for _, take := range steps {
			again := false
			o.again = &again
			if draining := take(o); draining || again {
				left = append(left, take)
			}
			failed = failed || again
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

// Remove removes what kube-proxy has left in the calling thread's network namespace,
// also what connections are still using. The error joins all that Options.Failed is
// told. It needs CAP_NET_ADMIN.
func Remove(o Options) error {
	o.owner = &kubeProxy
	return o.collect(o.steps(false))
}

// RemoveOwned removes an owner's chains of iptables, and the owner's jumps to them, from
// the tables nat, filter and mangle of both families and both variants, and the owner's
// tables of nftables, in the calling thread's network namespace. A chain to which a rule
// of somebody else's leads stays. The error joins all that Options.Failed is told. It
// needs CAP_NET_ADMIN, and no command.
func RemoveOwned(of Owner, o Options) error {
	o.owner = &of
	return o.collect(o.rules())
}

// collect takes steps, and joins all that fails.
func (o Options) collect(steps []step) error {
	var errs []error
	failed := o.Failed
	o.Failed = func(err error) {
		errs = append(errs, err)
		if failed != nil {
			failed(err)
		}
	}
	for _, take := range steps {
		take(o)
	}
	return errors.Join(errs...)
}

// steps remove everything; with drain set, IPVS' virtual servers only when they have no
// established connections.
func (o Options) steps(drain bool) []step {
	servers := &virtualServers{drain: drain}
	return append(o.rules(), servers.remove)
}

// rules are the steps that remove the owner's tables and chains, in the order of
// iptablesTables.
func (o Options) rules() (all []step) {
	for _, family := range families {
		if o.owner.Table != "" {
			all = append(all, inNFTables(func(o Options, conn *nfnl.Conn) { o.removeTable(conn, family) }))
		}
		for _, name := range iptablesTables {
			table := nfnl.Table{Family: family, Name: name}
			all = append(all, inNFTables(func(o Options, conn *nfnl.Conn) { o.removeChains(conn, table) }))
		}
	}
	for i := range xFamilies {
		for _, name := range iptablesTables {
			all = append(all, func(o Options) bool { o.removeXChains(&xFamilies[i], name); return false })
		}
	}
	return all
}

func (o Options) removed(what string) {
	if o.Removed != nil {
		o.Removed(what)
	}
}

// failed tells of what may go well another time.
func (o Options) failed(err error) {
	if o.again != nil {
		*o.again = true
	}
	o.stays(err)
}

// stays tells of what will not.
func (o Options) stays(err error) {
	if o.Failed != nil {
		o.Failed(err)
	}
}
