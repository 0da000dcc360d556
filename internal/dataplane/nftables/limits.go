// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables/expr"
	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"golang.org/x/sys/unix"
)

// Limits of connections (desired.Limits) have a table of their own in each family, which exists while a
// Service has some:
//
//	map limited             { 10.96.0.20 . tcp . 80 : 1 }              # frontend -> ID of the Service, limits
//	map limited-node-ports  { tcp . 30080 : 1 }
//	map limits              { 1 : goto limit-1 }
//	set connections         { flags dynamic }                          # by Service
//	set clients-PLACE       { flags dynamic; size 8192 }               # by Service and client
//	set rates-PLACE         { flags dynamic, timeout; size 8192 }
//	chain prerouting        { type nat hook prerouting priority dstnat - 1;  jump limited }
//	chain limited           { ip daddr . meta l4proto . th dport @restricted jump check-source
//	                          limits[ limited[ip daddr . meta l4proto . th dport] ] }
//	chain limit-1 {
//	  update @rates-PLACE { ID . ip saddr limit rate over 50/second } goto beyond
//	  ID . ip saddr != @rates-PLACE counter unlimited_clients
//	  update @clients-PLACE { ID . ip saddr ct count over 20 } goto beyond
//	  update @connections { ID ct count over 1000 } goto beyond
//	}
//
// Clients of IPv6 are networks of 64 bits. The chains have the type nat too, so established packets do not meet them. Services of a
// namespace with the same limits are a place: they share a chain and sets of clients. PLACE is a hash, which is the same
// after a restart. The sets that rules fill stay when the proxy starts again, and with them what they have
// counted. The kernel deletes elements that count no connection any more.
//
// While a set is full, clients of the place that are not in it are not limited each for itself: senders of
// forged addresses could else shut out all others. AnnotationMaxConnections still holds.

// mostLimited is the size of a set of clients.
const mostLimited = 1 << 13

const limitPrefix = "limit-"

// Chains of the table.
const (
	chainLimited = "limited"
	chainRefused = "refused"
	chainDropped = "dropped"
)

var limitCounters = []string{dataplane.TooManyConnections, dataplane.TooManyOfClient, dataplane.TooFast, unlimitedClients}

// unlimitedClients counts how often a set was full: connections without a limit that is per client.
const unlimitedClients = "unlimited_clients"

// limitSchema is the table with limits of a family. Of the embedded one, it has the sets sticky (with
// frontends of both kinds) and remember under its own names, and rejected, nodeAddresses, restricted and sources.
type limitSchema struct {
	schema
	connections *nfnl.Set
}

var limitSchemas = [...]limitSchema{newLimitSchema(schemas[desired.IPv4]), newLimitSchema(schemas[desired.IPv6])}

func newLimitSchema(s schema) limitSchema {
	s.table.Name = "slipstream-limits"
	s.addressSets[0].sticky, s.nodePortSets[0].sticky = named(s.addressSets[0].sticky, "limited"), named(s.nodePortSets[0].sticky, "limited-node-ports")
	s.remember = named(s.remember, "limits")
	l := limitSchema{schema: s}
	l.connections = &nfnl.Set{Name: "connections", KeyType: nfnl.Concat(nfnl.TypeMark, nfnl.TypeMark), KeyLen: 8, Flags: unix.NFT_SET_EVAL}
	return l
}

// all lists the sets, with those of places.
func (l *limitSchema) all(places iter.Seq[place]) []*nfnl.Set {
	all := []*nfnl.Set{l.addressSets[0].sticky, l.nodePortSets[0].sticky, l.nodeAddresses, l.remember, l.rejected, l.restricted, l.sources, l.connections}
	for p := range places {
		if p.PerClient > 0 {
			all = append(all, l.clients(p))
		}
		if p.Rate > 0 {
			all = append(all, l.rates(p))
		}
	}
	return all
}

func (l *limitSchema) clients(p place) *nfnl.Set { return l.perClient("clients-", p, 0) }
func (l *limitSchema) rates(p place) *nfnl.Set {
	return l.perClient("rates-", p, unix.NFT_SET_TIMEOUT)
}

func (l *limitSchema) perClient(prefix string, p place, flags uint32) *nfnl.Set {
	sum := sha256.Sum256([]byte(p.name()))
	return &nfnl.Set{
		Name: fmt.Sprintf("%s%x", prefix, sum[:8]), KeyType: nfnl.Concat(nfnl.TypeMark, nfnl.TypeMark, l.table.Family.AddrType()), KeyLen: 8 + l.addrLen,
		Flags: unix.NFT_SET_EVAL | flags, Size: mostLimited,
	}
}

// place is what has a chain: limits of a namespace.
type place struct {
	namespace string
	desired.Limits
}

func placeOf(f *desired.Frontend) place { return place{f.Service.Namespace, f.Limits} }

func (p place) name() string { return p.namespace + " " + p.String() }

// limits is what a family's table has.
type limits struct {
	frontends   map[desired.FrontendKey]*desired.Frontend // limited ones
	users       map[place]int                             // how many of them have these limits
	numbers     map[place]uint32                          // nil without a table
	fingerprint uint64
	err         error // why the kernel does not have them
	tried       time.Time
}

// limitsAgain is how long after a failure the limits are tried again, if nothing changes.
const limitsAgain = 10 * time.Second

// limitID identifies a Service and its limits across runs.
func limitID(f *desired.Frontend) [2]uint32 {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s/%s %s", f.Service.Namespace, f.Service.Name, f.Limits))
	return [2]uint32{firstNumber(sum[:]), firstNumber(sum[4:])}
}

// limit programs the limits of a change that was encoded. Services are served even if that fails.
func (b *Dataplane) limit(change *desired.Change, all bool) {
	nodes := &change.Sets[desired.NodeAddresses]
	if !all && len(change.Frontends)+len(nodes.Added)+len(nodes.Removed) == 0 && b.limits[0].err == nil && b.limits[1].err == nil {
		b.unlimited = nil
		return
	}
	reported := map[desired.Problem]bool{}
	for f := range b.served {
		k := &b.limits[f]
		if all {
			*k = limits{frontends: map[desired.FrontendKey]*desired.Frontend{}, users: map[place]int{}}
		}
		again := all || k.err != nil || k.numbers != nil && len(nodes.Added)+len(nodes.Removed) > 0
		var batch nfnl.Batch
		for _, c := range change.Frontends {
			old := k.frontends[c.Key()]
			limited := c.New != nil && c.New.Limits != desired.Limits{} && limitSchemas[f].is(c.Key().Addr())
			if old == nil && !limited || old != nil && limited && old.Service == c.New.Service && old.Limits == c.New.Limits && old.Sources == c.New.Sources {
				continue
			}
			if old != nil {
				limitSchemas[f].element(&batch, del, old, k.numbers)
				delete(k.frontends, c.Key())
				k.users[placeOf(old)]--
				again = again || k.users[placeOf(old)] == 0 || limited && old.Sources != nil
			}
			if limited {
				k.frontends[c.Key()] = c.New
				k.users[placeOf(c.New)]++
				again = again || k.numbers[placeOf(c.New)] == 0
				limitSchemas[f].element(&batch, add, c.New, k.numbers)
			}
		}
		if again {
			b.rewriteLimits(f)
		} else if !batch.Empty() {
			k.err = b.conn.Commit(0, &batch)
		}
		for _, front := range k.frontends {
			if k.err == nil {
				break
			}
			p := desired.ProblemOf(front.Service.Owner(), "metadata.annotations", "connections are not limited: "+k.err.Error())
			if !b.unlimited[p] && !reported[p] {
				b.lacking = append(b.lacking, p)
			}
			reported[p] = true
		}
	}
	b.unlimited = reported
}

// element writes a limited frontend.
func (l *limitSchema) element(batch *nfnl.Batch, op op, f *desired.Frontend, numbers map[place]uint32) {
	n := numbers[placeOf(f)]
	if n == 0 {
		return
	}
	set, key := l.setsOf(f.FrontendKey, desired.Cluster).sticky, l.frontendKey(nil, f.FrontendKey)
	id := limitID(f)
	w := writer{batch: batch, key: key, value: number(number(secondWord(nil, id[0]), id[1]), n)}
	w.element(op, &l.schema, set, f.Service.String())
	if f.Sources == nil {
		return
	}
	w.member(op, &l.schema, l.restricted)
	w.sources(op, &l.schema, f, f.Sources.All())
}

// rewriteLimits writes the table anew, except what rules have counted, or deletes it without limits.
func (b *Dataplane) rewriteLimits(f int) {
	b.limits[f].tried, b.limits[f].err = time.Now(), b.tryLimits(f)
}

func (b *Dataplane) tryLimits(f int) error {
	l, k := &limitSchemas[f], &b.limits[f]
	former := k.numbers
	k.numbers = nil
	maps.DeleteFunc(k.users, func(_ place, n int) bool { return n == 0 })
	t, err := b.conn.Contents(l.table)
	if err != nil {
		return err
	}
	var batch, unused nfnl.Batch
	all := l.all(maps.Keys(k.users))
	var has []*nfnl.Set
	if t != nil {
		compatible := true
		var skeleton nfnl.Batch
		l.write(&skeleton, nil)
		want, _ := skeleton.Written()
		if has, compatible = t.Compatible(all); len(k.users) == 0 || !compatible || !t.SameHooks(&want) {
			batch.DeleteTable(l.table)
			t = nil
		}
	}
	if len(k.users) == 0 {
		return b.conn.Commit(0, &batch)
	}
	k.numbers = map[place]uint32{}
	names := map[string]bool{chainPrerouting: true, chainOutput: true, chainLimited: true, chainSources: true, chainRefused: true, chainDropped: true}
	take := func(p place, n uint32) {
		k.numbers[p], names[fmt.Sprint(limitPrefix, n)] = n, true
	}
	var others []place
	for p := range k.users {
		if n := former[p]; n > 0 {
			take(p, n)
		} else {
			others = append(others, p)
		}
	}
	slices.SortFunc(others, func(a, b place) int { return strings.Compare(a.name(), b.name()) })
	for n := uint32(1); len(others) > 0; n++ {
		if !names[fmt.Sprint(limitPrefix, n)] {
			take(others[0], n)
			others = others[1:]
		}
	}
	if t != nil {
		for _, set := range has {
			if set.Flags&unix.NFT_SET_EVAL == 0 {
				batch.FlushSet(l.table, set)
			}
		}
		batch.FlushTable(l.table)
		for _, set := range t.Sets {
			if !slices.ContainsFunc(all, func(own *nfnl.Set) bool { return own.Name == set.Name }) {
				batch.DeleteSet(l.table, set.Name)
			}
		}
		for _, c := range t.Chains {
			if !names[c.Name] {
				unused.DeleteChain(l.table, c.Name)
			}
		}
	}
	l.write(&batch, k.numbers)
	for address := range b.writer.keys[f][schemas[f].nodeAddresses] {
		batch.AddElement(l.table, l.nodeAddresses, []byte(address), nil, "")
	}
	for _, front := range k.frontends {
		l.element(&batch, add, front, k.numbers)
	}
	if err := b.conn.Commit(0, &batch); err != nil {
		return err
	}
	if !unused.Empty() {
		_ = b.conn.Commit(0, &unused) // before Linux 6.2, elements can still refer to them: the next time
	}
	if t, err = b.conn.Contents(l.table); t != nil {
		k.fingerprint = t.Fingerprint(nil)
	}
	return err
}

// write writes the sets, chains and rules.
func (l *limitSchema) write(batch *nfnl.Batch, numbers map[place]uint32) {
	w := ruleWriter{&l.schema, batch}
	batch.AddTable(l.table, tableComment)
	for _, set := range l.all(maps.Keys(numbers)) {
		batch.AddSet(l.table, set)
	}
	for _, reason := range limitCounters {
		batch.AddCounter(l.table, reason)
	}
	for _, c := range []nfnl.Chain{
		{Name: chainPrerouting, Hook: &nfnl.Hook{Type: "nat", Num: unix.NF_INET_PRE_ROUTING, Priority: -101}},
		{Name: chainOutput, Hook: &nfnl.Hook{Type: "nat", Num: unix.NF_INET_LOCAL_OUT, Priority: -101}},
		{Name: chainLimited}, {Name: chainSources}, {Name: chainRefused}, {Name: chainDropped},
	} {
		batch.AddChain(l.table, c)
	}
	for p, n := range numbers {
		l.writeChain(w, fmt.Sprint(limitPrefix, n), p)
		batch.AddVerdict(l.table, l.remember, word(n), nfnl.Goto, fmt.Sprint(limitPrefix, n))
	}
	w.rule(chainLimited, "", l.frontend(&l.addressSets[0]), in(l.restricted), jump(chainSources))
	w.source(&l.addressSets[0])
	w.rule(chainSources, "the next table drops it", accept())
	for _, frontend := range l.limited() {
		w.rule(chainLimited, "@limits[number in @limited]", frontend, []expr.Any{lookup(l.remember, regTimeout, unix.NFT_REG_VERDICT)})
	}
	w.rule(chainRefused, "", w.countRejected())
	w.refuse(chainRefused)
	w.rule(chainDropped, "", w.countRejected(), drop())
	w.enter(chainPrerouting, chainLimited)
	w.enter(chainOutput, chainLimited)
}

// limited looks up the packet's frontend among those with limits: first those that are not NodePorts.
func (l *limitSchema) limited() [2][]expr.Any {
	cluster, node := &l.addressSets[0], &l.nodePortSets[0]
	return [...][]expr.Any{
		slices.Concat(l.frontend(cluster), cluster.loadSticky(regKey)),
		slices.Concat(l.load(l.daddr), in(l.nodeAddresses), l.frontend(node), node.loadSticky(regKey)),
	}
}

// writeChain writes the chain of a place.
func (l *limitSchema) writeChain(w ruleWriter, chain string, limits place) {
	w.batch.AddChain(l.table, nfnl.Chain{Name: chain})
	beyond := chainRefused
	if limits.Drop {
		beyond = chainDropped
	}
	unit := map[byte]expr.LimitTime{'s': expr.LimitTimeSecond, 'm': expr.LimitTimeMinute}[limits.Unit]
	for _, x := range []struct {
		most      uint32
		set       *nfnl.Set
		timeout   time.Duration
		perClient bool
		reason    string
		counts    expr.Any
	}{
		// A bucket that was not used for as long is full again.
		{limits.Rate, l.rates(limits), time.Duration(unit) * time.Second, true, dataplane.TooFast,
			&expr.Limit{Type: expr.LimitTypePkts, Over: true, Rate: uint64(limits.Rate), Unit: unit, Burst: limits.Rate}},
		{limits.PerClient, l.clients(limits), 0, true, dataplane.TooManyOfClient, &expr.Connlimit{Count: limits.PerClient, Flags: unix.NFT_LIMIT_F_INV}},
		{limits.Connections, l.connections, 0, false, dataplane.TooManyConnections, &expr.Connlimit{Count: limits.Connections, Flags: unix.NFT_LIMIT_F_INV}},
	} {
		if x.most == 0 {
			continue
		}
		for _, frontend := range l.limited() {
			if x.perClient {
				frontend = append(frontend, l.loadTo(l.saddr, regClient)...)
				if l.family == desired.IPv6 { // a host has a network of its own
					mask := append(bytes.Repeat([]byte{0xff}, 8), make([]byte, 8)...)
					frontend = append(frontend, &expr.Bitwise{SourceRegister: regClient, DestRegister: regClient, Len: 16, Mask: mask, Xor: make([]byte, 16)})
				}
			}
			w.rule(chain, "ID in @limited", frontend, []expr.Any{
				&expr.Dynset{SetName: x.set.Name, Operation: dynsetUpdate, SrcRegKey: regID, Timeout: x.timeout, Exprs: []expr.Any{x.counts}},
			}, nfnl.CountIn(x.reason), goTo(beyond))
			if x.perClient {
				w.rule(chain, "ID in @limited", frontend, []expr.Any{&expr.Lookup{SetName: x.set.Name, SourceRegister: regID, Invert: true}}, nfnl.CountIn(unlimitedClients))
			}
		}
	}
}

// checkLimits finds limits that another process has modified.
func (b *Dataplane) checkLimits(f int) error {
	l, k := &limitSchemas[f], &b.limits[f]
	if k.err != nil {
		return nil // and said so
	}
	t, err := b.conn.Contents(l.table)
	if err != nil || t == nil && k.numbers == nil {
		return err
	}
	if t == nil || t.Dormant || k.numbers == nil || t.Fingerprint(nil) != k.fingerprint {
		return damaged(&l.schema, "limits were modified")
	}
	var batch nfnl.Batch
	for address := range b.writer.keys[f][schemas[f].nodeAddresses] {
		batch.AddElement(l.table, l.nodeAddresses, []byte(address), nil, "")
	}
	for _, n := range k.numbers {
		batch.AddVerdict(l.table, l.remember, word(n), nfnl.Goto, fmt.Sprint(limitPrefix, n))
	}
	checked := 0
	for _, front := range k.frontends { // in another order each time
		l.element(&batch, add, front, k.numbers)
		if checked++; checked == sampleSize {
			break
		}
	}
	return b.has(&l.schema, &batch, "limits")
}

// limitFaults compares the table with a full description, except what rules have counted.
func (b *Dataplane) limitFaults(f int, full *desired.Change) (rules int, faults []string, err error) {
	l := &limitSchemas[f]
	want, places := map[desired.FrontendKey]*desired.Frontend{}, map[place]bool{}
	for _, c := range full.Frontends {
		if c.New.Limits != (desired.Limits{}) && l.is(c.Key().Addr()) {
			want[c.Key()], places[placeOf(c.New)] = c.New, true
		}
	}
	t, err := b.conn.Contents(l.table)
	if err != nil || t == nil && len(want) == 0 {
		return 0, nil, err
	}
	if t == nil {
		return 0, []string{"connections are not limited"}, nil
	}
	if len(want) == 0 {
		return len(t.Rules), []string{"the table does not belong there, as no Service has limits"}, nil
	}
	// The numbers of places depend on the order in which they came.
	numbers, most := map[place]uint32{}, uint32(0)
	for _, set := range []*nfnl.Set{l.addressSets[0].sticky, l.nodePortSets[0].sticky} {
		failed := b.conn.Elements(l.table, set.Name, func(e nfnl.Element) {
			key, _ := l.decodeFrontendKey(e.Key)
			if front := want[key]; front != nil {
				numbers[placeOf(front)] = firstNumber(e.Value[12:])
			}
			most = max(most, firstNumber(e.Value[12:]))
		})
		if !errors.Is(failed, unix.ENOENT) && !errors.Is(failed, nfnl.ErrInterrupted) { // Differences finds the first
			err = errors.Join(err, failed)
		}
	}
	for p := range places {
		if numbers[p] == 0 {
			most++
			numbers[p] = most
		}
	}
	var batch nfnl.Batch
	l.write(&batch, numbers)
	for _, m := range full.Sets[desired.NodeAddresses].Added {
		if l.is(m.Addr) {
			batch.AddElement(l.table, l.nodeAddresses, l.addr(nil, m.Addr.As16()), nil, "")
		}
	}
	for _, front := range want {
		l.element(&batch, add, front, numbers)
	}
	unused := func(chain string) bool { return strings.HasPrefix(chain, limitPrefix) }
	faults, failed := b.conn.Differences(l.table, t, &batch, unused, func(set string, e nfnl.Element) string {
		if key, ok := l.decodeFrontendKey(e.Key); ok {
			return fmt.Sprintf("%s (%s)", key, e.Comment)
		}
		return fmt.Sprintf("%x", e.Key)
	})
	return len(t.Rules), faults, errors.Join(err, failed)
}
