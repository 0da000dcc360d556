// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/ipvs"
	"k8s.io/klog/v2"
)

// compare replaces the steps of a plan, which are those for a kernel without virtual servers,
// by those that lead from the kernel's virtual servers to the record.
func (b *Dataplane) compare(ctx context.Context, p *plan) error {
	existing, err := b.byAddress(ctx)
	if err != nil || len(existing) == 0 {
		return err
	}
	p.first, p.last = nil, nil
	b.servers.each(func(f *desired.Frontend, pool *pool) {
		want := b.servers.service(f)
		have, exists := existing[want.Key]
		delete(existing, want.Key)
		switch {
		case err != nil:
		case exists:
			if have != want {
				p.first = append(p.first, step{ipvs.SetService(want), want.Key, netip.AddrPort{}, f.Service, nil})
			}
			err = b.compareDestinations(ctx, p, f, pool)
		default:
			b.servers.add(p, f, pool)
		}
	})
	for key := range existing {
		may, failed := b.conn.MayBeProxys(ctx, key, b.options.Exclude)
		if err = errors.Join(err, failed); may {
			klog.FromContext(ctx).Info("Deletes a virtual server of no Service", "server", key.String())
			p.last = append(p.last, step{request: ipvs.DeleteService(key), key: key, tolerate: noService})
		} else if failed == nil {
			klog.FromContext(ctx).Info("Leaves a virtual server of another program: it has direct routing or tunnels, or is in ipvs.excludeCIDRs", "server", key.String())
		}
	}
	return err
}

// compareDestinations adds the steps for a virtual server that the kernel has.
func (b *Dataplane) compareDestinations(ctx context.Context, p *plan, f *desired.Frontend, pool *pool) error {
	key := keyOf(f.FrontendKey)
	existing, err := b.conn.Destinations(ctx, key)
	if err != nil {
		return err
	}
	has := make(map[netip.AddrPort]ipvs.Destination, len(existing))
	for _, d := range existing {
		has[d.AddrPort] = d
	}
	missing := slices.Clone(pool.Slots)
	missing = slices.DeleteFunc(missing, func(backend desired.Backend) bool {
		to := addrPort(backend)
		d, exists := has[to]
		delete(has, to)
		if n := pool.weight(backend); exists && (d.Weight != n || !d.Masquerading || d.Limited) {
			p.first = append(p.first, step{ipvs.SetDestination(key, ipvs.Destination{AddrPort: to, Weight: n}), key, to, f.Service, nil})
		}
		return exists
	})
	var surplus []desired.Backend
	for to := range has {
		surplus = append(surplus, desired.NewBackend(to))
	}
	b.servers.replace(p, f, pool, surplus, missing)
	return nil
}
