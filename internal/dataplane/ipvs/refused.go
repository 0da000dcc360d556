// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/ipvs"
	"golang.org/x/sys/unix"
)

// refusals are the objects that the kernel has refused, such as a destination that is a broadcast
// address of the node. They are left out, so that none stops the others. The zero AddrPort stands
// for the virtual server, and a key without a port for an address of the dummy interface.
type refusals map[ipvs.Key]map[netip.AddrPort]refusal

type refusal struct {
	step
	err error
}

// has reports whether the kernel has refused a destination or its virtual server.
func (r refusals) has(key ipvs.Key, to netip.AddrPort) bool {
	_, server := r[key][netip.AddrPort{}]
	_, destination := r[key][to]
	return server || destination
}

// note records a refusal. It reports false for another failure: the privilege or memory is missing, or the
// kernel has other objects than the record.
func (r refusals) note(s *step, err error) bool {
	isOf := func(all ...error) bool {
		return slices.ContainsFunc(all, func(e error) bool { return errors.Is(err, e) })
	}
	switch {
	case r.has(s.key, s.to):
		return true
	case s.service == desired.ServicePort{}, isOf(unix.EPERM, unix.ENOMEM, unix.ENOBUFS, unix.EEXIST, unix.ESRCH, unix.ENODEV):
		return false
	case s.to.IsValid() && isOf(unix.ENOENT): // of a virtual server, it is about the scheduler
		return false
	}
	if r[s.key] == nil {
		r[s.key] = map[netip.AddrPort]refusal{}
	}
	r[s.key][s.to] = refusal{*s, err}
	return true
}

// drop forgets the refusal of a destination, or of a virtual server. It reports whether there was one.
func (r refusals) drop(key ipvs.Key, to netip.AddrPort) bool {
	_, refused := r[key][to]
	if delete(r[key], to); len(r[key]) == 0 {
		delete(r, key)
	}
	return refused
}

// changeAddresses changes the addresses of the dummy interface. The kernel makes the route of an IPv6 address in the
// background; until then, connections to it would follow other routes. So it waits for them, for a second at most.
func (b *Dataplane) changeAddresses(ctx context.Context, c *desired.SetChange) error {
	for _, a := range c.Removed {
		delete(b.refused, ipvs.Key{Addr: a.Addr})
	}
	var errs []error
	err := b.dummy.change(ctx, c, func(a netip.Addr, err error) {
		if !b.refused.note(&step{key: ipvs.Key{Addr: a}, service: b.servers.serviceAt(a)}, err) {
			errs = append(errs, err)
		}
	})
	end := time.Now().Add(time.Second)
	for _, added := range c.Added {
		refused := b.refused.has(ipvs.Key{Addr: added.Addr}, netip.AddrPort{})
		for added.Addr.Is6() && !refused && !b.dummy.isLocal(added.Addr) && time.Now().Before(end) {
			time.Sleep(time.Millisecond)
		}
	}
	return errors.Join(append(errs, err)...)
}

// serviceAt returns a Service port that has an address.
func (s *servers) serviceAt(a netip.Addr) (found desired.ServicePort) {
	s.each(func(f *desired.Frontend, _ *pool) {
		if f.Addr() == a {
			found = f.Service
		}
	})
	return found
}

// newProblems returns what is left out and has not been reported, in one Problem for each Service port.
func (b *Dataplane) newProblems() (all []desired.Problem) {
	found := map[desired.ServicePort]map[string]error{}
	for key, refused := range b.refused {
		for to, r := range refused {
			what := "virtual server " + key.String()
			switch {
			case to.IsValid():
				what = "endpoint " + to.String()
			case key.Port == 0:
				what = "address " + key.Addr.String()
			}
			if found[r.service] == nil {
				found[r.service] = map[string]error{}
			}
			found[r.service][what] = r.err
		}
	}
	reported := map[desired.Problem]bool{}
	for port, refused := range found {
		first := slices.Min(slices.Collect(maps.Keys(refused)))
		p := desired.ProblemOf(port.Owner(), first, fmt.Sprintf("IPVS does not take it: %v (%d such of %s are left out)", refused[first], len(refused), port))
		if reported[p] = true; !b.reported[p] {
			all = append(all, p)
		}
	}
	b.reported = reported
	slices.SortFunc(all, func(p, q desired.Problem) int { return cmp.Compare(p.Error(), q.Error()) })
	return all
}

// tryRefused tries again what the kernel has refused. The error wraps dataplane.ErrDue if it takes
// something now, such as after the node has left the network of a broadcast address.
func (b *Dataplane) tryRefused(ctx context.Context) error {
	var requests []ipvs.Request
	var addresses desired.SetChange
	for key, refused := range b.refused { // in another order each time
		for _, r := range refused {
			switch {
			case len(requests) == refusedSize:
			case key.Port != 0:
				requests = append(requests, r.request)
			default:
				addresses.Added = append(addresses.Added, desired.Address(key.Addr))
			}
		}
	}
	taken := len(requests) + len(addresses.Added)
	err := b.dummy.change(ctx, &addresses, func(netip.Addr, error) { taken-- })
	if err == nil {
		err = b.conn.Execute(ctx, requests, func(int, error) { taken-- })
	}
	if err != nil {
		return err
	}
	if taken > 0 {
		return fmt.Errorf("%w: IPVS takes %d objects that it has refused", dataplane.ErrDue, taken)
	}
	return nil
}
