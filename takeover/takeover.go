// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"context"
	"errors"
	"net/netip"
	"time"
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

// drainPeriod is how often [Run] looks whether connections have ended. What failed is
// tried again after that time at first, then less and less often, up to retryPeriod.
const (
	drainPeriod = 5 * time.Second
	retryPeriod = 5 * time.Minute
)

// Run removes what kube-proxy has left in the calling thread's network namespace. It
// returns when nothing is left but chains that somebody else uses, or when ctx ends: that
// is at once, unless IPVS still has established connections or something fails, which is
// tried again. Failed is told the same thing once. Call it when all Services are
// programmed; it needs CAP_NET_ADMIN. It is for one goroutine at a time.
func Run(ctx context.Context, o Options) {
	o.owner = &kubeProxy
	repeat(ctx, o, drainPeriod, func(o Options) bool { return o.remove(true) })
}

// repeat attempts until nothing has failed that may go well another time, and nothing is
// draining.
func repeat(ctx context.Context, o Options, first time.Duration, attempt func(Options) (draining bool)) {
	told, tell := map[string]bool{}, o.Failed
	o.Failed = func(err error) {
		if text := err.Error(); !told[text] && tell != nil {
			told[text] = true
			tell(err)
		}
	}
	wait := first
	for {
		again := false
		o.again = &again
		draining := attempt(o)
		switch {
		case again:
			wait = min(2*wait, retryPeriod)
		case draining:
			wait = first
		default:
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// Remove removes what kube-proxy has left in the calling thread's network namespace,
// also what connections are still using. The error joins all that Options.Failed is
// told. It needs CAP_NET_ADMIN.
func Remove(o Options) error {
	o.owner = &kubeProxy
	return o.collect(func(o Options) { o.remove(false) })
}

// RemoveOwned removes an owner's chains of iptables, and the owner's jumps to them, from
// the tables nat, filter and mangle of both families and both variants, and the owner's
// tables of nftables, in the calling thread's network namespace. A chain to which a rule of somebody else's leads stays. The
// error joins all that Options.Failed is told. It needs CAP_NET_ADMIN, and no command.
func RemoveOwned(of Owner, o Options) error {
	o.owner = &of
	return o.collect(func(o Options) {
		o.removeNFTables()
		o.removeLegacy()
	})
}

// collect joins all that fails in remove.
func (o Options) collect(remove func(Options)) error {
	var errs []error
	failed := o.Failed
	o.Failed = func(err error) {
		errs = append(errs, err)
		if failed != nil {
			failed(err)
		}
	}
	remove(o)
	return errors.Join(errs...)
}

// remove removes everything; with drain set, IPVS' virtual servers that have established
// connections stay, and draining says that there are some.
func (o Options) remove(drain bool) (draining bool) {
	o.removeNFTables()
	o.removeLegacy()
	return o.removeIPVS(drain)
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
