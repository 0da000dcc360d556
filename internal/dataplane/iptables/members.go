// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"net/netip"
	"slices"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/ipset"
)

// frontend is a frontend as programmed.
type frontend struct {
	*desired.Frontend
	in      [frontendSets]bool // the sets that it is a member of
	sources []netip.Prefix
}

// memberships are the sets that a frontend should be in.
func (b *Backend) memberships(f *desired.Frontend) (in [frontendSets]bool) {
	in[setExternal] = f.Kind.External()
	in[setLocal] = f.LocalPool != desired.NoPool
	in[setRestricted] = f.Sources != nil
	for _, id := range f.Pools() {
		if p := b.pools.Get(id); len(p.Slots) == 0 { // so no rule translates its packets
			in[setReject], in[setDrop] = p.IfEmpty == desired.Reject, p.IfEmpty == desired.Drop
			break
		}
	}
	return in
}

// setWrite is an element to be added or deleted.
type setWrite struct {
	kind setKind
	member
	add bool
}

// setWrites are the writes of one family, before and after those of the rules. In this order
// no packet is refused that both the old and the new content serve.
type setWrites struct{ before, after []setWrite }

// one adds or deletes one member. Most sets matter only for packets that a rule translates
// afterwards, or that no rule has translated; so members are added before the rules and
// deleted after them. There are two exceptions. setLocal sends packets to the rules for
// traffic from outside, which have to exist first; unless the frontend is new (fresh), as
// its packets would go to remote endpoints until then. setServiceCIDRs only has more
// packets dropped.
func (w *setWrites) one(k setKind, m member, add, fresh bool) {
	early := add
	switch k {
	case setLocal:
		early = !add || fresh
	case setServiceCIDRs:
		early = !add
	}
	to := &w.after
	if early {
		to = &w.before
	}
	*to = append(*to, setWrite{k, m, add})
}

// update writes the changes of a frontend's memberships. Either may be nil.
func (w *setWrites) update(from, to *frontend) {
	var was, is frontend
	var m member
	if from != nil {
		was, m = *from, frontendMember(from.FrontendKey)
	}
	if to != nil {
		is, m = *to, frontendMember(to.FrontendKey)
	}
	ranges := func(all []netip.Prefix, others []netip.Prefix, add bool) {
		for _, p := range all {
			if !slices.Contains(others, p) {
				w.one(setSources, member{AddrPort: m.AddrPort, Protocol: m.Protocol, Net: p}, add, false)
			}
		}
	}
	ranges(is.sources, was.sources, true)
	for k := range frontendSets {
		if was.in[k] != is.in[k] {
			w.one(k, m, is.in[k], !was.in[setExternal])
		}
	}
	ranges(was.sources, is.sources, false)
}

// addresses writes changes of the other sets of one family.
func (w *setWrites) addresses(f desired.Family, change *desired.Change) {
	one := func(k setKind, of desired.Family, m member, add bool) {
		if of == f {
			w.one(k, m, add, false)
		}
	}
	each(change.ClusterIPs, func(a netip.Addr, add bool) { one(setClusterIPs, desired.FamilyOf(a), addrMember(a), add) })
	each(change.HairpinIPs, func(a netip.Addr, add bool) { one(setHairpin, desired.FamilyOf(a), addrMember(a), add) })
	each(change.HealthPorts, func(p desired.HealthPort, add bool) { one(setHealthChecks, p.Family, ipset.Port(p.Port), add) })
	each(change.ServiceCIDRs, func(p netip.Prefix, add bool) { one(setServiceCIDRs, desired.FamilyOf(p.Addr()), member{Net: p}, add) })
}

// each calls do for each element that a change adds or removes.
func each[T any](c desired.SetChange[T], do func(element T, add bool)) {
	for _, e := range c.Added {
		do(e, true)
	}
	for _, e := range c.Removed {
		do(e, false)
	}
}
