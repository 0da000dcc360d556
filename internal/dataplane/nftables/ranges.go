// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"bytes"
	"encoding/binary"
	"maps"
	"math"
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"
	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"golang.org/x/sys/unix"
)

// A frontend with a range of ports has one element, whatever its size, in a map of intervals, which leads to its
// key in the maps that all frontends have:
//
//	map ranges    { 10.96.0.10 . udp . 10000-20000 : 81 . 10000 }
//	map frontends { 10.96.0.10 . 81 . 10000 : 7 }
//
// That key has the first port, and the protocol's number with rangeFlag, so that no packet has it. The chains
// for ranges are those for addresses again, with other names. They look up the map ranges before each look-up
// of a frontend, and leave the port alone. Packets enter them that are to no port of a Service, after both tries. So
// ports win over ranges, and packets to them do not meet the map.
//
// If a Service with ranges has session affinity, all of its ports share a client's backend, by its address: the
// map partners has a pool's backend with an address.
//
//	map partners { 7 . 0 . 10.0.1.2 : 10.0.1.2 . 5060 }
//
// A table has all this only if there are ranges, or have been since the start ([desired.Change.Ranges]). The
// kernel copies a map of intervals with each change, so ordinary ports are not in it.

const rangeFlag = 0x40

const rangePrefix = "range-"

// chainRanges leads to the chains for ranges, which have the names of those for addresses with rangePrefix.
const chainRanges = "ranges"

// rangeChains are the additional chains of a table with ranges.
var rangeChains = []nfnl.Chain{
	{Name: chainRanges},
	{Name: rangePrefix + chainClusterIP},
	{Name: rangePrefix + chainExternal},
	{Name: rangePrefix + chainExternalLocal},
	{Name: rangePrefix + chainSources},
	{Name: rangePrefix + chainDispatch},
	{Name: rangePrefix + chainReject},
	{Name: rangePrefix + chainDrop},
}

// rangedSchemas are the schemas of tables with ranges.
var rangedSchemas = func() (all [len(schemas)]schema) {
	for f := range schemas {
		s := schemas[f]
		s.ranged = true
		const words = 3
		s.ranges = &nfnl.Set{ // a long number, as sources
			Name:    "ranges",
			KeyType: nfnl.TypeInteger, KeyLen: s.external.KeyLen, Flags: unix.NFT_SET_INTERVAL,
			KeyTypeof: nfnl.NetworkHeader(s.external.KeyLen),
			DataType:  nfnl.Concat(nfnl.TypeMark, nfnl.TypeInetProto, nfnl.TypeInetService), DataLen: words * 4,
			DataTypeof: nfnl.Concatenation(nfnl.MetaMark, nfnl.L4Proto, nfnl.TCPDport),
		}
		s.partners = &nfnl.Set{
			Name: "partners", KeyType: s.members.KeyType, KeyLen: s.members.KeyLen,
			DataType: nfnl.Concat(s.table.Family.AddrType(), nfnl.TypeInetService), DataLen: s.addrLen + 4,
		}
		for i := range s.rangeSets {
			d := s.addressSets[i]
			d.prefix, d.inRange = rangePrefix+d.prefix, true
			d.picks, d.stickyPicks = named(d.picks, rangePrefix+d.picks.Name), named(d.stickyPicks, rangePrefix+d.stickyPicks.Name)
			s.rangeSets[i] = d
		}
		all[f] = s
	}
	return all
}()

// named returns a set like another, with another name.
func named(set *nfnl.Set, name string) *nfnl.Set {
	s := *set
	s.Name = name
	return &s
}

func schemasFor(ranges bool) *[len(schemas)]schema {
	if ranges {
		return &rangedSchemas
	}
	return &schemas
}

// chains lists all chains except those of scopes.
func (s *schema) chains() []nfnl.Chain {
	if s.ranged {
		return slices.Concat(chains, rangeChains)
	}
	return chains
}

// affinitySelectors are the keys in picks for the chains of a scope that affinity writes.
func (s *schema) affinitySelectors(d *scopeSets) []int {
	switch {
	case d.inRange:
		return []int{stickySelector | sharedSelector}
	case s.ranged:
		return []int{stickySelector, stickySelector | sharedSelector}
	}
	return []int{stickySelector}
}

// rangeRules writes the chains for ranges.
func (w *ruleWriter) rangeRules(c dataplane.Config, full *desired.Change, mark uint32) {
	cluster := &w.rangeSets[desired.Cluster]
	for range 2 { // see dispatch
		w.rule(chainRanges, "", w.frontend(cluster), in(w.external), goTo(rangePrefix+chainExternal))
		w.rule(chainRanges, "", w.load(w.daddr), in(w.clusterIPs), goTo(rangePrefix+chainClusterIP))
	}
	w.addresses(c, &w.rangeSets, full, mark)
	w.rule(rangePrefix+chainReject, "", nfnl.CountIn(dataplane.NoEndpoints))
	w.refuse(rangePrefix + chainReject)
	w.rule(rangePrefix+chainDrop, "no endpoint that traffic policy allows", nfnl.CountIn(dataplane.NoLocalEndpoints), drop())
}

// rangeAt replaces a packet's key in registers by that of the range that has it, or does not match. The value's
// first word is unused (see the package's documentation). It gets where the address ends, which is loaded again.
func (s *schema) rangeAt(reg uint32, address []expr.Any) []expr.Any {
	return append([]expr.Any{lookup(s.ranges, reg, reg+s.addrLen/4-1)}, address...)
}

// copyRange loads the protocol and the port of the range that has a packet's key. The registers are part of one
// number for nft, so the look-up writes to others: nft would take its result for that number.
func (w *ruleWriter) copyRange(to uint32) []expr.Any {
	words := w.addrLen / 4
	found := to + words + 1
	load := append(w.loadTo(w.daddr, to), &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: to + words}, dport(found),
		loadMarkTo(found+1), loadMarkTo(found+2), lookup(w.ranges, to, found))
	for i := range uint32(2) {
		load = append(load, &expr.Bitwise{SourceRegister: found + 1 + i, DestRegister: to + i, Len: 4, Mask: word(math.MaxUint32), Xor: word(0)})
	}
	return load
}

// portRange writes the interval of a frontend.
func (w *writer) portRange(op op, s *schema, f *desired.Frontend) {
	first := s.rangeStart(f.FrontendKey)
	last := nfnl.AppendDestination(nil, uint8(f.Protocol), netip.AddrPortFrom(f.Addr(), f.Last))
	last[len(last)-2], last[len(last)-1] = 0xff, 0xff // the padding
	value := append(number(nil, 0), s.frontendKey(nil, f.FrontendKey)[s.addrLen:]...)
	w.interval(op, s, s.ranges, first, last, value...)
}

// rangeStart encodes the first key of the interval of a frontend.
func (s *schema) rangeStart(k desired.FrontendKey) []byte {
	return nfnl.AppendDestination(nil, uint8(k.Protocol), k.AddrPort)
}

// partnerKey encodes the key of a pool and a backend's address in partners.
func (s *schema) partnerKey(b []byte, pool uint32, e desired.Backend) []byte {
	return s.memberKey(b, pool, desired.NewBackend(netip.AddrPortFrom(e.Addr(), 0)))
}

// share updates the partners of a pool, one for each address, and returns those that are removed and added.
func (p *pool) share(c *desired.PoolChange) (removed, added []desired.Backend) {
	if p.partners == nil {
		p.partners = map[netip.Addr][]desired.Backend{}
	}
	before := map[netip.Addr]desired.Backend{}
	first := func(a netip.Addr) (b desired.Backend) {
		if all := p.partners[a]; len(all) > 0 {
			b = all[0]
		}
		return b
	}
	at := func(b desired.Backend) netip.Addr {
		a := b.Addr()
		if _, known := before[a]; !known {
			before[a] = first(a)
		}
		return a
	}
	for _, b := range c.Removed {
		a := at(b)
		if p.partners[a] = slices.DeleteFunc(p.partners[a], func(x desired.Backend) bool { return x == b }); len(p.partners[a]) == 0 {
			delete(p.partners, a)
		}
	}
	for _, b := range c.Added {
		a := at(b)
		p.partners[a] = append(p.partners[a], b)
		slices.SortFunc(p.partners[a], desired.Backend.Compare)
	}
	for _, a := range slices.SortedFunc(maps.Keys(before), netip.Addr.Compare) {
		was, is := before[a], first(a)
		if was == is {
			continue
		}
		if was != (desired.Backend{}) {
			removed = append(removed, was)
		}
		if is != (desired.Backend{}) {
			added = append(added, is)
		}
	}
	return removed, added
}

// decodeFrontendKey is the inverse of schema.frontendKey.
func (r *tableReader) decodeFrontendKey(k []byte) (f desired.FrontendKey, ok bool) {
	if f, ok = r.schema.decodeFrontendKey(k); f.Protocol&rangeFlag != 0 {
		f.Protocol &^= rangeFlag
		f.Last, ok = r.lasts[string(k[:r.external.KeyLen])]
	}
	return f, ok
}

// portRange reads a range.
func (r *tableReader) portRange(e nfnl.Element, last []byte) {
	key, at := e.Key, len(e.Key)-4
	if !bytes.Equal(key[:at], last[:at]) {
		r.fault("range from %x to %x spans two frontends", key, last)
	}
	r.lasts[string(slices.Concat(key[:r.addrLen], e.Value[4:]))] = binary.BigEndian.Uint16(last[at:])
}

// partner reads a backend in partners.
func (r *tableReader) partner(e nfnl.Element) {
	id := firstNumber(e.Key)
	r.members[id] = append(r.members[id], r.backend(e.Value, e.Value[r.addrLen:]))
	if r.ip(e.Value) != r.ip(e.Key[8:]) {
		r.fault("partner of two addresses %x", e.Key)
	}
}
