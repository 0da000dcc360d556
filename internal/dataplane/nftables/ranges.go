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

// A frontend with a range of ports has an element for each of its parts, whatever their sizes, in a map of intervals, with
// its key in the other maps and its pools of both scopes:
//
//	map ranges { 10.96.0.10 . udp . 10000-20000 : 81 . 10000 . 7 . none . turn }
//
// That key has the first port, and the protocol's number with rangeFlag, so that no packet has it. The chains
// for ranges are those for addresses again, with other names. They look up the map ranges before each look-up
// of a frontend, and leave the port alone. Packets enter them that are to no port of a Service, after both tries. So
// ports win over ranges, and packets to them do not meet the map.
//
// A part with another turn than the last is found before ([desired.Turn]), by rules of the chains missed, local-missed and
// external-missed. These are there from the start, and empty, as rules are only added to the ends of chains. The next Check
// after the first range adds these rules, which only save look-ups.
//
// If a Service with ranges has session affinity, all of its ports share a client's backend, by its address: the
// map partners has a pool's backend with an address.
//
//	map partners { 7 . 0 . 10.0.1.2 : 10.0.1.2 . 5060 }
//
// A table has all this once there is a range ([desired.Change.Ranges]), in maps that are empty at first: for a rule in a new
// chain, the kernel walks the maps that it uses. It copies a map of intervals with each change: so without ordinary ports.

const rangeFlag, rangePrefix = 0x40, "range-" // the prefix of the chains and maps

// noPool is the number of a pool that a range does not have. rangePools is the word with the pool in a value of ranges,
// before that of the scope Local, and rangeTurn that with a turn.
const noPool, firstPool, rangePools, rangeTurn = 0, 1, 3, 5

// turn returns the number for a turn of a range with or without a pool of the scope Local. All of its bytes are the same, as
// nft reads them in another order than it writes them.
func turn(t desired.Turn, localPool uint32) uint32 {
	return 0x01010101 * (uint32(t)<<1 | min(localPool, 1))
}

// chainRanges leads to the chain for external ranges. Packets for a ClusterIP have come through the chain dispatch.
const chainRanges, chainExternalMissed = "ranges", "external-" + chainMissed

// rangedSchemas are the schemas of tables with ranges.
var rangedSchemas = func() (all [len(schemas)]schema) {
	for f := range schemas {
		s := schemas[f]
		s.ranged = true
		s.ranges = &nfnl.Set{ // a long number, as sources
			Name: "ranges", KeyType: nfnl.TypeInteger, KeyLen: s.external.KeyLen, Flags: unix.NFT_SET_INTERVAL, KeyTypeof: nfnl.NetworkHeader(s.external.KeyLen),
			// For nft, all words but the first and last are an address: version 1.0.6 names four fields at most.
			DataType: nfnl.Concat(nfnl.TypeMark, nfnl.TypeIP6Addr, nfnl.TypeMark), DataLen: 6 * 4, DataTypeof: nfnl.Concatenation(nfnl.MetaMark, nfnl.IP6Daddr, nfnl.MetaMark),
		}
		s.partners = named(s.members, "partners")
		s.partners.DataType, s.partners.DataLen = nfnl.Concat(s.table.Family.AddrType(), nfnl.TypeInetService), s.addrLen+4
		pools := named(s.pools, rangePrefix+s.pools.Name)
		for i := range s.rangeSets {
			d := s.addressSets[i]
			d.prefix, d.inRange = rangePrefix+d.prefix, true
			for _, set := range []**nfnl.Set{&d.endpoints, &d.picks, &d.stickyPicks} {
				*set = named(*set, rangePrefix+(*set).Name)
			}
			d.frontends, d.pools, d.place, d.startSizes = s.ranges, pools, scopes+i, startSizes[:1]
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

// schemasFor has the schemas of tables with and without ranges.
var schemasFor = map[bool]*[len(schemas)]schema{false: &schemas, true: &rangedSchemas}

// writeRanges adds what ranges need to a table that has the rest. Of the chains that are there, it only adds to the ends.
func (s *schema) writeRanges(batch *nfnl.Batch, c dataplane.Config, full *desired.Change) {
	for _, set := range s.sets() {
		if !schemas[s.family].owns(set) {
			batch.AddSet(s.table, set)
		}
	}
	batch.AddChain(s.table, nfnl.Chain{Name: chainRanges})
	for _, name := range []string{chainClusterIP, chainExternal, chainExternalLocal, chainSources, chainDispatch, chainReject, chainDrop} {
		batch.AddChain(s.table, nfnl.Chain{Name: rangePrefix + name})
	}
	w, cluster := ruleWriter{s, batch}, &s.rangeSets[desired.Cluster]
	for i := range s.rangeSets {
		w.scope(c, &w.rangeSets[i])
	}
	w.rule(chainServices, "", goTo(chainRanges))
	w.rule(chainDispatch, "", jump(chainRanges))
	w.rule(chainDispatch, "", goTo(rangePrefix+chainClusterIP))
	w.remembered(w.originalSticky()[2:])
	for range 2 { // see dispatch
		w.rule(chainRanges, "", w.frontend(cluster), in(w.external), goTo(rangePrefix+chainExternal))
	}
	w.addresses(c, &w.rangeSets, full, uint32(1)<<c.MasqueradeBit)
	w.rule(rangePrefix+chainReject, "", nfnl.CountIn(dataplane.NoEndpoints))
	w.refuse(rangePrefix + chainReject)
	w.rule(rangePrefix+chainDrop, "no endpoint that traffic policy allows", nfnl.CountIn(dataplane.NoLocalEndpoints), drop())
}

// writeEarly adds the rules for parts with other turns than the last. Until then they have that one.
func (s *schema) writeEarly(batch *nfnl.Batch, c dataplane.Config, full *desired.Change) {
	w, cluster, local := ruleWriter{s, batch}, &s.rangeSets[desired.Cluster], &s.rangeSets[desired.Local]
	w.early(chainMissed, cluster, desired.FirstTurn, noPool, nil, nil)
	w.early("local-"+chainMissed, local, desired.FirstTurn, 1, nil, nil)
	for t := desired.ExternalTurn; t <= desired.RestrictedTurn; t++ { // as the chains external, which always marks, and external-local
		w.early(chainExternalMissed, local, t, 1, w.podMatch(full.Local, expr.CmpOpNeq), fromNode(expr.CmpOpNeq))
		if pod := w.podMatch(full.Local, expr.CmpOpEq); pod != nil {
			w.early(chainExternalMissed, cluster, t, 1, pod, nil)
		}
		w.early(chainExternalMissed, cluster, t, noPool, nil, setMark(uint32(1)<<c.MasqueradeBit))
	}
}

// early writes a rule for packets to parts with a turn. first is a condition that costs no look-up, and then another one, or
// a mark. Marks that are loaded are only for the nft command.
func (w *ruleWriter) early(chain string, d *scopeSets, t desired.Turn, localPool uint32, first, then []expr.Any) {
	pool, n := uint32(regValueWord), turn(t, localPool)
	number := pool + rangeTurn - rangePools - uint32(d.scope)
	load := slices.Concat([]expr.Any{loadMarkTo(number)}, w.pool(d), []expr.Any{&expr.Cmp{Op: expr.CmpOpEq, Register: number, Data: word(n)}})
	if t == desired.RestrictedTurn { // the key of sources takes the place of the pool
		pool, load = regSpare, append(w.inSources(d, n), loadMarkTo(regValueWord))
	}
	w.rule(chain, "@ranges[ip daddr . meta l4proto . th dport], its @range-pools, its @"+d.picks.Name,
		first, load, []expr.Any{lookup(d.pools, pool, regValue)}, then, []expr.Any{lookup(d.picks, regValueWord, unix.NFT_REG_VERDICT)})
}

// beginRanges begins with what the first range of a family needs, or of any.
func (b *Dataplane) beginRanges(change *desired.Change, all bool) {
	for f := range schemas {
		begins := func(p desired.PoolChange) bool { return (p.Range || p.Shared) && p.Family == desired.Family(f) }
		if b.schemas[f].ranged || !change.Ranges {
			continue
		}
		if b.unsealed = change; !all && !slices.ContainsFunc(change.Pools, begins) {
			continue
		}
		if b.schemas[f] = &rangedSchemas[f]; !b.unsupported[f] {
			b.begun[f] = b.first[f]
		}
	}
}

// sealRanges completes, in a Check, what the first range has added, for all families. If another program has committed
// meanwhile, the Check finds no seal, and everything is written again. The former seals stay, and fit no rules.
func (b *Dataplane) sealRanges(generation uint32) error {
	b.chains.Reset()
	b.beginRanges(b.unsealed, true)
	for f := range b.served {
		b.schemas[f].writeEarly(&b.chains, b.config, b.unsealed)
	}
	if err := b.commitChains(); err != nil {
		return err
	}
	want := b.skeletons(b.unsealed)
	b.unsealed = nil
	return b.detector.reset(b, generation, &want, [len(schemas)]bool{true, true})
}

// rangeAt replaces a packet's key in registers by that of the range that has it, or does not match. The value's
// first word is unused (see the package's documentation). It gets where the address ends, which is loaded again.
func (s *schema) rangeAt(reg uint32, address []expr.Any) []expr.Any {
	return append([]expr.Any{lookup(s.ranges, reg, reg+s.addrLen/4-1)}, address...)
}

// copyRange loads the protocol and the port of the range that has a packet's key, and with a turn matches that of the part,
// and copies the pool to regSpare. The registers are part of one number for nft, so the look-up writes to others: nft would
// take its result for that number. The marks are only for the nft command.
func (w *ruleWriter) copyRange(d *scopeSets, to, turn uint32) (load []expr.Any) {
	found := to + 2
	number, pool := found+rangeTurn, found+rangePools+uint32(d.scope)
	for _, mark := range []uint32{found + 1, found + 2, number, pool} {
		load = append(load, loadMarkTo(mark))
	}
	load = append(append(load, w.destination(d, to)...), lookup(w.ranges, to, found), copyWord(found+1, to), copyWord(found+2, to+1))
	if turn != 0 {
		load = append(load, &expr.Cmp{Op: expr.CmpOpEq, Register: number, Data: word(turn)}, copyWord(pool, regSpare))
	}
	return load
}

func copyWord(from, to uint32) expr.Any {
	return &expr.Bitwise{SourceRegister: from, DestRegister: to, Len: 4, Mask: word(math.MaxUint32), Xor: word(0)}
}

// portRange writes the intervals of a frontend, but those that another version of it has, too.
func (w *writer) portRange(op op, s *schema, f, other *desired.Frontend) {
	same := other != nil && f.Pool == other.Pool && f.LocalPool == other.LocalPool && f.Scope == other.Scope
	for _, part := range f.PartsOf() {
		if same && slices.Contains(other.PartsOf(), part) {
			continue
		}
		first, last := s.partKey(f, part.First), s.partKey(f, part.Last)
		last[len(last)-2], last[len(last)-1] = 0xff, 0xff // the padding
		pools := [scopes]uint32{noPool, noPool}
		if pools[f.Scope] = w.number(f.Pool); f.LocalPool != desired.NoPool {
			pools[desired.Local] = w.number(f.LocalPool)
		}
		value := append(number(nil, 0), s.frontendKey(nil, f.FrontendKey)[s.addrLen:]...)
		w.interval(op, s, s.ranges, first, last, number(number(number(value, pools[0]), pools[1]), turn(part.Turn, pools[desired.Local]))...)
	}
}

// partKey encodes a key of ranges.
func (s *schema) partKey(f *desired.Frontend, port uint16) []byte {
	return nfnl.AppendDestination(nil, uint8(f.Protocol), netip.AddrPortFrom(f.Addr(), port))
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
	first := func(a netip.Addr) (b desired.Backend) {
		if all := p.partners[a]; len(all) > 0 {
			b = all[0]
		}
		return b
	}
	before := map[netip.Addr]desired.Backend{}
	for _, b := range slices.Concat(c.Removed, c.Added) {
		before[b.Addr()] = first(b.Addr())
	}
	for _, b := range c.Removed {
		a := b.Addr()
		if p.partners[a] = slices.DeleteFunc(p.partners[a], func(x desired.Backend) bool { return x == b }); len(p.partners[a]) == 0 {
			delete(p.partners, a)
		}
	}
	for _, b := range c.Added {
		p.partners[b.Addr()] = append(p.partners[b.Addr()], b)
		slices.SortFunc(p.partners[b.Addr()], desired.Backend.Compare)
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
		parts := r.parts[string(k[:r.external.KeyLen])]
		if ok = len(parts) > 0; ok {
			f.Last = parts[len(parts)-1].Last
		}
	}
	return f, ok
}

// portRange reads a part of a range, after those before it.
func (r *tableReader) portRange(e nfnl.Element, last []byte) {
	at, words := len(e.Key)-4, e.Value[4*rangePools:]
	key := slices.Concat(e.Key[:r.addrLen], e.Value[4:4*rangePools])
	if !bytes.Equal(e.Key[:at], last[:at]) || !r.external.KeyType.Filled(key) {
		r.fault("range from %x to %x : %x spans two frontends, or has bits that no rule uses", e.Key, last, e.Value)
	}
	part := desired.Part{First: binary.BigEndian.Uint16(e.Key[at:]), Last: binary.BigEndian.Uint16(last[at:])}
	parts, next := r.parts[string(key)], binary.BigEndian.Uint16(key[at:])
	if len(parts) > 0 {
		next = parts[len(parts)-1].Last + 1
	}
	if part.First != next {
		r.fault("range %x lacks ports before %d", key, part.First)
	}
	pools := 0
	for scope, to := range r.toPool {
		pool := firstNumber(words[4*scope:])
		former, had := to[string(key)]
		if has := pool >= firstPool; len(parts) > 0 && (had != has || had && firstNumber(former.Value[4:]) != pool) {
			r.fault("range %x has two pools", key)
		} else if has {
			to[string(key)] = nfnl.Element{Key: key, Value: secondWord(nil, pool)}
			pools++
		}
	}
	number := firstNumber(words[4*(rangeTurn-rangePools):])
	part.Turn = desired.Turn(number & 0xff >> 1)
	if r.parts[string(key)] = append(parts, part); pools == 0 || number != turn(part.Turn, firstNumber(words[4:])) {
		r.fault("range %x leads to no frontend, or has the turn %#x", key, number)
	}
}

// partner reads a backend in partners.
func (r *tableReader) partner(e nfnl.Element) {
	id := firstNumber(e.Key)
	r.members[id] = append(r.members[id], r.backend(e.Value, e.Value[r.addrLen:]))
	if r.ip(e.Value) != r.ip(e.Key[8:]) {
		r.fault("partner of two addresses %x", e.Key)
	}
}
