// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables/expr"
	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"golang.org/x/sys/unix"
)

// Algorithms other than a random choice differ from it in the slot that they look up. The
// pool's value in the map pools leads to a chain with a rule that computes the slot:
//
//   - from the client's address, by a hash modulo the number of slots. The slots are a Maglev
//     table.
//   - from a counter (numgen inc) modulo the number of slots, for round robin.
//
// Such a chain is created when a pool first needs it, like those for timeouts of session
// affinity and for pools above startSize, and then stays until Reconcile. So a node whose Services
// have the default algorithm does not need the kernel's expression hash.
//
// The kernel has counters only in rules. (A map from pools to their next slot, in which rules
// delete and add elements, was tried: a deleted element stays in its hash bucket until the next
// garbage collection, and a connection took 0.5 ms after a few hundred.) So each pool with round
// robin has a rule of its own while it has that number of slots. There are at most MaxCounters
// such rules in each scope; further pools choose at random, and have a Problem, until one is left to them. Pools do not share a counter: two
// Services that are used in alternation would each get every second slot only.
//
// Processors that execute the rule at the same time get different numbers. A connection that
// fails to find its slot, because a transaction is just replacing it, is sent to a random one.

// Flags of a pool's value in the map pools, besides stickySelector, with the number of slots.
const (
	hashSelector    = 1 << 21 // the slot is a hash of the client's address,
	portSelector    = 1 << 22 // and port
	counterSelector = 1 << 23 // the next slot, by the counter whose number is above

	sharedSelector = 1 << 19 // only in keys of picks: as stickySelector, for the pools of Services with ranges

	counterShift = 24
	sizeMask     = 1<<17 - 1
)

// MaxCounters is the number of pools with round robin in each family and scope.
// Further ones choose at random. mostLacking is how many of those are reported.
const MaxCounters, mostLacking = 64, 16

const hashSeed = 0x736c6970

// pool is the record of a pool in the kernel.
type pool struct {
	dataplane.Pool
	ipvs    int     // how many backends IPVS has for it, instead of Slots
	counter counter // that the pool has
	lacking bool    // a Problem says that it has none

	rest     *rest                            // nil if the kernel has all slots
	sets     *scopeSets                       // in which it is
	shared   bool                             // see partners
	partners map[netip.Addr][]desired.Backend // by address, in order
}

// counter is a rule that counts: it is counter number number-1, which counts modulo size; none if number is 0.
type counter struct{ size, number int32 }

// onDemand holds, for one scope, or its ranges, which on-demand chains exist and which round-robin counters are taken:
// chains are by the value in the map pools without stickySelector, taken has the counters as bits,
// and sizes what each one's chain counts modulo; 0 without a chain.
type onDemand struct {
	chains map[int]bool
	taken  uint64
	sizes  [MaxCounters]int32
}

// assignCounter gives a pool the counter that it needs, or takes it back. former is the value in the map
// pools that the counter's chain had until now, for another size; 0 if none.
func (x *onDemand) assignCounter(p *pool, gone bool) (former int) {
	if gone || !p.needsCounter() {
		if p.counter.number > 0 {
			x.taken &^= 1 << (p.counter.number - 1)
		}
		p.counter = counter{}
		return 0
	}
	if free := bits.TrailingZeros64(^x.taken); p.counter.number == 0 && free < MaxCounters {
		x.taken |= 1 << free
		p.counter.number = int32(free + 1)
	}
	if p.counter.number == 0 {
		return 0
	}
	n, _ := p.draws()
	p.counter.size = int32(n)
	size := &x.sizes[p.counter.number-1]
	if *size != 0 && *size != p.counter.size {
		former = counter{*size, p.counter.number}.selector()
		delete(x.chains, former)
	}
	*size = p.counter.size
	return former
}

func (p *pool) needsCounter() bool {
	n, by := p.draws()
	return by == desired.RoundRobin && n > 1 && n <= maxSize
}

func (t counter) selector() int { return int(t.size) | counterSelector | int(t.number-1)<<counterShift }

// onDemandPrefix begins the names of these chains, after the scope's prefix.
const onDemandPrefix = "slot-"

// onDemandChains returns the chains for a value in the map pools, which leads to the first. They are
// created when they are first needed.
func (d *scopeSets) onDemandChains(selector int) []string {
	size := selector & sizeMask
	if selector == passSelector {
		return []string{d.prefix + onDemandPrefix + "pass"}
	}
	switch {
	case selector == sharedSelector:
		return []string{d.prefix + onDemandPrefix + "shared-" + chainAffinity}
	case !ordered(selector) && (size <= exactSizes || !d.inRange):
		return []string{d.pickChain(size)}
	case !ordered(selector):
		return []string{d.pickChain(size), d.drawChain(size)}
	}
	name := fmt.Sprintf("%s%shash-%d", d.prefix, onDemandPrefix, size)
	switch {
	case selector&counterSelector != 0:
		name = fmt.Sprintf("%s%snext-%d", d.prefix, onDemandPrefix, selector>>counterShift)
	case selector&portSelector != 0:
		name += "-port"
	}
	return []string{name}
}

// chainOf returns the chain that a key of the maps to chains leads to.
func (d *scopeSets) chainOf(selector int) string {
	refusals := ""
	if d.inRange {
		refusals = rangePrefix // which do not count by destination
	}
	switch selector {
	case dropSelector:
		return refusals + chainDrop
	case ipvsSelector:
		return chainIPVS
	case 0:
		return refusals + chainReject
	case stickySelector:
		return d.prefix + chainAffinity
	}
	return d.onDemandChains(bare(selector))[0]
}

// isOnDemandChain reports whether a chain is one of these.
func (s *schema) isOnDemandChain(name string) bool {
	for d := range s.eachScopeSets {
		if strings.HasPrefix(name, d.prefix+onDemandPrefix) {
			return true
		}
	}
	return false
}

// needsChain reports whether a chain is one that the pools need.
func (b *Dataplane) needsChain(s *schema, name string) bool {
	for d := range s.eachScopeSets {
		for selector := range b.onDemand[s.family][d.place].chains {
			if slices.Contains(d.onDemandChains(selector), name) {
				return true
			}
		}
	}
	return false
}

// ordered reports whether a value in the map pools is of an algorithm that needs all slots in their order.
func ordered(selector int) bool { return selector > 0 && selector&(hashSelector|counterSelector) != 0 }

// isOnDemand reports whether a value in the map pools needs chains that are not there from the start.
func (d *scopeSets) isOnDemand(selector int) bool {
	return selector == passSelector || selector == sharedSelector || ordered(selector) || selector > 0 && selector&sizeMask > 0 && !d.starts(selector&sizeMask)
}

// setsFor returns the sets for a pool.
func (s *schema) setsFor(scope desired.Scope, inRange bool) *scopeSets {
	if inRange {
		return &s.rangeSets[scope]
	}
	return &s.addressSets[scope]
}

// bare is a value in the map pools without stickySelector.
func bare(selector int) int {
	if selector < 0 {
		return selector
	}
	return selector &^ stickySelector
}

// writeOnDemand creates the chains for a value in the map pools, without stickySelector.
func (s *schema) writeOnDemand(batch *nfnl.Batch, d *scopeSets, selector int) {
	chains, size := d.onDemandChains(selector), selector&sizeMask
	for _, c := range chains {
		batch.AddChain(s.table, nfnl.Chain{Name: c})
		batch.FlushChain(s.table, c)
	}
	w, chain := ruleWriter{s, batch}, chains[0]
	switch {
	case selector == passSelector: // an empty chain: the packet leaves the table
	case selector == sharedSelector:
		w.affinity(d, selector)
		batch.AddVerdict(s.table, d.picks, word(stickySelector|sharedSelector), nfnl.Goto, chain)
		return
	case !ordered(selector):
		w.pick(d, size)
	default:
		if selector&hashSelector != 0 {
			for range 2 { // see dispatch
				w.slot(chain, "hash", d, s.hash(size, selector&portSelector != 0))
			}
		} else {
			w.slot(chain, "next slot", d, []expr.Any{&expr.Numgen{Register: regSlot, Modulus: uint32(size), Type: unix.NFT_NG_INCREMENTAL}})
			w.selector(chain, d, size)
		}
		w.rule(chain, "the pool was changed meanwhile", goTo(d.pickChain(1)))
	}
	s.writeSelector(batch, d, selector, chain)
}

// hash computes a slot from the client's address, and from its port too. The seed is the same on every node.
func (s *schema) hash(size int, port bool) []expr.Any {
	source, n := s.loadTo(s.saddr, regKey), s.addrLen
	if port {
		n += 4
		source = append(source, &expr.Payload{DestRegister: regKey + s.addrLen/4, Base: expr.PayloadBaseTransportHeader, Len: 2})
	}
	return append(source, &expr.Hash{
		SourceRegister: regKey, DestRegister: regSlot, Length: n, Modulus: uint32(size), Seed: hashSeed, Type: expr.HashTypeJenkins,
	})
}

// prepareSelector returns the value of a pool in the map pools after a change, and creates the chain that it needs.
func (b *Dataplane) prepareSelector(p *pool) int {
	x, s := &b.onDemand[p.Family][p.sets.place], b.schemas[p.Family]
	former := x.assignCounter(p, false)
	selector := selectorOf(p)
	var needs []int
	if p.sets.isOnDemand(selector) {
		needs = append(needs, bare(selector))
	}
	if p.shared && selector > 0 && selector&stickySelector != 0 {
		needs = append(needs, sharedSelector)
	}
	for d := range s.eachScopeSets {
		if d.place != p.sets.place {
			continue
		}
		for _, selector := range needs {
			if !x.chains[selector] && !b.unsupported[p.Family] {
				s.writeOnDemand(&b.chains, d, selector)
			}
		}
		if former != 0 && !b.unsupported[p.Family] {
			b.batch.DeleteElement(s.table, d.picks, word(uint32(former)))
			b.batch.DeleteElement(s.table, d.stickyPicks, word(uint32(former|stickySelector)))
		}
	}
	for _, selector := range needs {
		x.chains[selector] = true
	}
	return selector
}

// tellLacking adds the Problem of a pool that has no counter.
func (b *Dataplane) tellLacking(p *pool) {
	if p != nil && p.needsCounter() && p.counter.number == 0 && !p.lacking && len(b.lacking) < mostLacking {
		p.lacking = true
		b.lacking = append(b.lacking, desired.ProblemOf(p.Service.Owner(), "metadata.annotations["+desired.AnnotationScheduler+"]",
			fmt.Sprintf("endpoints are chosen at random, as %d Service ports have round robin already", MaxCounters)))
	}
}

// passCounters gives counters that no pool has any more to pools that lack one.
func (b *Dataplane) passCounters() {
	w := &b.writer
	for i, p := range b.pools {
		if p == nil || !p.needsCounter() || p.counter.number > 0 || ^b.onDemand[p.Family][p.sets.place].taken == 0 {
			continue
		}
		id := desired.PoolID(i)
		at := slices.IndexFunc(w.poolUpdates, func(r poolUpdate) bool { return r.id == id })
		if at < 0 {
			at = len(w.poolUpdates)
			w.poolUpdates = append(w.poolUpdates, poolUpdate{id: id, schema: b.schemas[p.Family], scopeSets: p.sets, shared: p.shared, before: selectorOf(p)})
		}
		w.poolUpdates[at].after = b.prepareSelector(p)
	}
}

// Supports returns an error if the kernel lacks an algorithm, once Probe has looked.
func (b *Dataplane) Supports(a desired.Algorithm) error {
	if a.Hashes() && b.lacksHash != nil {
		return fmt.Errorf("the kernel cannot hash (needs CONFIG_NFT_HASH): %w", b.lacksHash)
	}
	return nil
}

// probeHash tries whether the kernel has the expression hash.
func (b *Dataplane) probeHash(s schema) {
	var batch nfnl.Batch
	batch.AddDormantTable(s.table)
	s.write(&batch, b.config, &desired.Change{})
	s.writeOnDemand(&batch, &s.addressSets[desired.Cluster], desired.TableSizes()[0]|hashSelector)
	b.lacksHash = b.conn.DryRun(&batch)
}
