// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/ipset"
	"golang.org/x/sys/unix"
)

// setKind is one of the IP sets, which answer questions of membership. Each exists for
// both families. A rule that uses a set never changes, and a member costs microseconds
// where a rule in iptables-legacy costs a copy of the table.
type setKind int

const (
	setSources    setKind = iota // who may connect to restricted frontends
	setExternal                  // frontends that are neither ClusterIPs nor NodePorts
	setLocal                     // those of them with a pool for traffic from outside
	setRestricted                // those that only some sources may use
	setReject                    // frontends without backends that are refused
	setDrop                      // frontends without backends, or without those for traffic from outside, that are dropped
	frontendSets                 // the sets above are of frontends

	setClusterIPs    setKind = iota - 1
	setNodeAddresses         // that serve NodePorts
	setHairpin               // addresses of endpoints that may be on this node
	setServiceCIDRs
	setHealthChecks // ports of the node
	setKinds
)

// setTypes are the names of the sets, and the names of their types.
var setTypes = [setKinds]struct{ name, typ string }{
	setSources:       {"SOURCES", "hash:ip,port,net"},
	setExternal:      {"EXTERNAL-IPS", "hash:ip,port"},
	setLocal:         {"LOCAL", "hash:ip,port"},
	setRestricted:    {"RESTRICTED", "hash:ip,port"},
	setReject:        {"REJECT", "hash:ip,port"},
	setDrop:          {"DROP", "hash:ip,port"},
	setClusterIPs:    {"CLUSTER-IPS", "hash:ip"},
	setNodeAddresses: {"NODE-IPS", "hash:ip"},
	setHairpin:       {"HAIRPIN", "hash:ip"},
	setServiceCIDRs:  {"SERVICE-CIDRS", "hash:net"},
	setHealthChecks:  {"HEALTH-CHECKS", ipset.TypePorts},
}

// setName is a set's name: "SLIP-4-LOCAL".
func setName(f desired.Family, k setKind) string { return nameOf(f, setTypes[k].name) }

func nameOf(f desired.Family, name string) string {
	if f == desired.IPv4 {
		return prefix + "4-" + name
	}
	return prefix + "6-" + name
}

// formerSet is a set of an earlier version in place of setExternal, with a member for each NodePort
// at each address. It has another name, so that the rules of both versions find what they need.
func formerSet(f desired.Family) string { return nameOf(f, "EXTERNAL") }

// member is a member of a set.
type member = ipset.Member

func frontendMember(k desired.FrontendKey) member {
	return member{AddrPort: k.AddrPort, Protocol: uint8(k.Protocol)}
}

func addrMember(a netip.Addr) member { return member{Net: netip.PrefixFrom(a, a.BitLen())} }

// keyOf is the frontend of a member of a set of frontends.
func keyOf(m member) desired.FrontendKey {
	return desired.FrontendKey{AddrPort: m.AddrPort, Protocol: desired.Protocol(m.Protocol)}
}

// readSets lists the members of all sets of a family. A set that does not exist has none.
func readSets(c *ipset.Conn, f desired.Family) (all [setKinds]map[member]bool, err error) {
	for k := range setKinds {
		if all[k], err = c.List(setName(f, k)); err != nil && !errors.Is(err, unix.ENOENT) {
			return all, err
		}
	}
	return all, nil
}

// checkSets compares the number of members of all sets with the number that was written.
func (b *Dataplane) checkSets() error {
	for _, t := range b.tables {
		for k := range setKinds {
			n, err := b.sets.Count(setName(t.family, k))
			switch {
			case errors.Is(err, unix.ENOENT):
				return fmt.Errorf("%w: IP set %s does not exist", dataplane.ErrDamaged, setName(t.family, k))
			case err != nil:
				return err
			case n != t.members[k]:
				return fmt.Errorf("%w: IP set %s has %d members instead of %d", dataplane.ErrDamaged, setName(t.family, k), n, t.members[k])
			}
		}
	}
	return nil
}

// frontend is a frontend as programmed.
type frontend struct {
	*desired.Frontend
	in [frontendSets]bool // the sets that it is a member of, except setSources
}

// memberships are the sets that a frontend should be in. A NodePort is in none; setReject and
// setDrop stand for rules (see step.update).
func (b *Dataplane) memberships(f *desired.Frontend) (in [frontendSets]bool) {
	in[setExternal] = f.Kind.External()
	in[setLocal] = f.LocalPool != desired.NoPool
	in[setRestricted] = f.Sources != nil
	for _, id := range f.Pools() {
		if f.Passes { // also of this node's clients, if no pool has endpoints
			break
		}
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

// members are the elements of sets that a frontend is, in the order in which to add them. It
// may be nil.
func (f *frontend) members() (all []setWrite) {
	if f == nil || f.OnNode() {
		return nil
	}
	m := frontendMember(f.FrontendKey)
	if f.Sources != nil {
		for _, p := range f.Sources.All() {
			all = append(all, setWrite{setSources, member{AddrPort: m.AddrPort, Protocol: m.Protocol, Net: p}, true})
		}
	}
	for k, is := range f.in {
		if is {
			all = append(all, setWrite{setKind(k), m, true})
		}
	}
	return all
}

// update writes the changes of a frontend's memberships. Either may be nil.
func (w *setWrites) update(from, to *frontend) {
	was, is, all := from.members(), to.members(), map[setWrite]int{}
	for _, m := range was {
		all[m]--
	}
	for _, m := range is {
		all[m]++
	}
	fresh := from == nil || !from.in[setExternal]
	for _, m := range is {
		if all[m] > 0 {
			w.one(m.kind, m.member, true, fresh)
		}
	}
	for _, m := range slices.Backward(was) {
		if all[m] < 0 {
			w.one(m.kind, m.member, false, false)
		}
	}
}

// addresses writes changes of the other sets of one family.
func (w *setWrites) addresses(f desired.Family, change *desired.Change) {
	for set := range desired.Sets {
		kind, has := setKindOf[set]
		if !has {
			continue
		}
		for m, added := range change.Sets[set].All() {
			if m.Family() == f {
				w.one(kind, memberOf(m), added, false)
			}
		}
	}
}

// setKindOf has the IP sets of the sets of a change.
var setKindOf = map[desired.Set]setKind{
	desired.ClusterIPs: setClusterIPs, desired.NodeAddresses: setNodeAddresses, desired.HairpinIPs: setHairpin,
	desired.HealthPorts: setHealthChecks, desired.ServiceCIDRs: setServiceCIDRs,
}

func memberOf(m desired.Member) member {
	switch {
	case m.Protocol != 0:
		return ipset.Port(m.Port)
	case m.Bits != 0:
		return member{Net: m.Prefix()}
	}
	return addrMember(m.Addr)
}

// compareSets reads a family's sets, and returns the writes after which they have what the
// given writes would add to empty ones.
func (b *Dataplane) compareSets(t *table, all *setWrites) (out setWrites, err error) {
	got, err := readSets(b.sets, t.family)
	if err != nil {
		return out, err
	}
	var want [setKinds]map[member]bool
	for k := range setKinds {
		want[k] = map[member]bool{}
		t.members[k] = len(got[k])
	}
	for _, w := range slices.Concat(all.before, all.after) {
		want[w.kind][w.member] = true
	}
	// Sources are added before the frontends that they restrict, and deleted after them.
	for k := range setKinds {
		for m := range want[k] {
			if !got[k][m] {
				out.one(k, m, true, !got[setExternal][frontendMember(keyOf(m))])
			}
		}
	}
	for k := setKinds - 1; k >= 0; k-- {
		for m := range got[k] {
			if !want[k][m] {
				out.one(k, m, false, false)
			}
		}
	}
	return out, nil
}
