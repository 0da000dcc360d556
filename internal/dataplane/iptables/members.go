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
	// Packets that no rule translates, as a pool has no endpoints, get that pool's
	// verdict. If the Cluster pool has endpoints, it is the Local pool.
	empty := b.pools.Get(f.Pool)
	if len(empty.Slots) > 0 && in[setLocal] {
		empty = b.pools.Get(f.LocalPool)
	}
	if len(empty.Slots) == 0 {
		in[setReject] = empty.IfEmpty == desired.Reject
		in[setDrop] = empty.IfEmpty == desired.Drop
	}
	return in
}

// setWrite is an element to be added or deleted.
type setWrite struct {
	kind setKind
	member
	add bool
}

// setWrites are the writes of one family, before and after those of the rules. In this
// order no packet is refused meanwhile that both the old and the new content serve.
type setWrites struct{ before, after []setWrite }

func (w *setWrites) write(s setWrite, before bool) {
	if before {
		w.before = append(w.before, s)
	} else {
		w.after = append(w.after, s)
	}
}

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
	w.write(setWrite{k, m, add}, early)
}

// update writes what differs of a frontend in sets. Either may be nil.
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

// addresses writes changes of the sets of addresses.
func (w *setWrites) addresses(f desired.Family, change *desired.Change) {
	for _, s := range []struct {
		kind    setKind
		changes desired.AddressChange
	}{{setClusterIPs, change.ClusterIPs}, {setHairpin, change.HairpinIPs}} {
		for _, a := range s.changes.Added {
			if desired.FamilyOf(a) == f {
				w.one(s.kind, addrMember(a), true, false)
			}
		}
		for _, a := range s.changes.Removed {
			if desired.FamilyOf(a) == f {
				w.one(s.kind, addrMember(a), false, false)
			}
		}
	}
	for _, p := range change.HealthPorts.Added {
		if p.Family == f {
			w.one(setHealthChecks, ipset.Port(p.Port), true, false)
		}
	}
	for _, p := range change.HealthPorts.Removed {
		if p.Family == f {
			w.one(setHealthChecks, ipset.Port(p.Port), false, false)
		}
	}
	for _, p := range split(change.ServiceCIDRs.Added) {
		if desired.FamilyOf(p.Addr()) == f {
			w.one(setServiceCIDRs, member{Net: p}, true, false)
		}
	}
	for _, p := range split(change.ServiceCIDRs.Removed) {
		if desired.FamilyOf(p.Addr()) == f {
			w.one(setServiceCIDRs, member{Net: p}, false, false)
		}
	}
}
