// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/ipset"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/iptchains"
	"github.com/slipstream-proxy/slipstream/internal/node/sysctl"
	"k8s.io/klog/v2"
)

// owner owns the chains of all dataplanes of this kind.
var owner = iptchains.Owner{
	Name: "slipstream",
	Owns: func(chain string) bool { return strings.HasPrefix(chain, prefix) },
	Entered: func(chain string) bool {
		switch chain {
		case chainServices, chainMasquerade, chainHairpinTree, chainFirewall, chainInput, chainForward, chainLocalnet,
			prefix + "OUTPUT": // of IPVS mode in earlier versions
			return true
		}
		return false
	},
}

// Cleanup implements dataplane.Dataplane.
func (b *Dataplane) Cleanup(ctx context.Context) error {
	b.sequence.Begin()
	return dataplane.Inside(b.config.NetNS, func() error { return Remove(ctx) })
}

// Remove removes all that any dataplane of this kind has programmed in the calling
// thread's network namespace, in both variants. It runs no command.
//
// Unless net.ipv4.conf.all.route_localnet is 0, chainLocalnet stays. This proxy may have set
// the parameter, and another proxy may rely on it, so Remove does not reset it. Without the
// chain neighbors could connect to loopback addresses (CVE-2020-8558).
func Remove(ctx context.Context) error {
	o := owner
	set, err := sysctl.HasRouteLocalnet()
	if set || err != nil {
		o.Owns = func(chain string) bool { return owner.Owns(chain) && chain != chainLocalnet }
	}
	if err := errors.Join(err, iptchains.Remove(ctx, o)); err != nil {
		return err // rules use the sets
	}
	names := []string{probeName}
	for _, f := range []desired.Family{desired.IPv4, desired.IPv6} {
		for k := range setKinds {
			names = append(names, setName(f, k))
		}
		names = append(names, formerSet(f), nameOf(f, "FRONTENDS")) // the last one is of IPVS mode in earlier versions
	}
	return ipset.Destroy(ctx, names...)
}

// cleanOther removes the chains of an earlier run from the variant, and the tables, that are not
// used.
func (b *Dataplane) cleanOther(ctx context.Context) error {
	return dataplane.Inside(b.config.NetNS, func() error {
		var errs []error
		for _, table := range iptchains.Tables() {
			if table.Legacy == (b.variant == Legacy) && slices.Contains(chainTables, table.Name) {
				continue
			}
			removed, err := table.Remove(ctx, owner)
			for _, kept := range removed.Kept {
				klog.FromContext(ctx).Error(kept, "A chain of a former run stays in a table that is no longer used")
			}
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	})
}
