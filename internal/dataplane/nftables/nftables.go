// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
)

// Dataplane is the nftables dataplane. It needs Linux 5.13 and CAP_NET_ADMIN in the network namespace.
type Dataplane struct {
	config   dataplane.Config
	conn     *nfnl.Conn
	schemas  [len(schemas)]*schema
	batch    nfnl.Batch
	chains   nfnl.Batch // chains that elements in batch lead to (see commitChains)
	writer   writer
	detector detector
	clients  Clients

	pools       dataplane.Pools[pool] // in the kernel
	rests       map[desired.PoolID]*rest
	spent       map[string]int // elements of slots that this Apply writes, by namespace, and how many it may
	most        int
	timeouts    [len(schemas)]map[uint32]int       // timeouts of session affinity that have a chain, with their frontends' number, or emptied
	onDemand    [len(schemas)][2 * scopes]onDemand // by scope, those of ranges last
	unsealed    *desired.Change                    // see sealRanges
	first       [len(schemas)]nfnl.Batch           // what the first range of a node adds, encoded in advance
	begun       [len(schemas)]nfnl.Batch           // of those, what precedes chains
	limits      [len(schemas)]limits
	unlimited   map[desired.Problem]bool // Services, as reported
	sequence    dataplane.Sequence
	unsupported desired.Families  // families that the kernel does not support
	lacksHash   error             // the expression hash
	lacking     []desired.Problem // pools that have newly got no counter
	random      *rand.Rand        // seeded by the clock, so that a simulation in virtual time repeats
}

var _ dataplane.Dataplane = (*Dataplane)(nil)

// New opens a netlink socket. It programs nothing.
func New(c dataplane.Config) (*Dataplane, error) {
	conn, err := nfnl.Dial(c.NetNS)
	if err != nil {
		return nil, err
	}
	c.Step = cmp.Or(c.Step, desired.MaxChange)
	b := &Dataplane{config: c, conn: conn, schemas: [...]*schema{&schemas[0], &schemas[1]}, timeouts: [len(schemas)]map[uint32]int{{}, {}}, random: rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0))}
	b.writer.batch = &b.batch
	b.clients.init(b)
	return b, nil
}

// Commits returns the count of the dataplane's transactions, for [nfnl.Conn.Share].
func (b *Dataplane) Commits() *nfnl.Commits { return b.conn.Commits() }

// Clients returns what counts and limits clients with session affinity, in parallel to the Dataplane's methods.
func (b *Dataplane) Clients() *Clients { return &b.clients }

// Close implements dataplane.Dataplane.
func (b *Dataplane) Close() error { return b.conn.Close() }

// served yields the indexes of the schemas of supported families.
func (b *Dataplane) served(yield func(f int) bool) {
	for f := range schemas {
		if !b.unsupported[f] && !yield(f) {
			return
		}
	}
}

// Apply implements dataplane.Dataplane.
func (b *Dataplane) Apply(ctx context.Context, change *desired.Change) (dataplane.Stats, error) {
	if err := b.sequence.BeginApply(ctx, change); err != nil {
		return dataplane.Stats{}, fmt.Errorf("nftables: %w", err)
	}
	b.batch.Reset()
	b.chains.Reset()
	b.spent, b.most = map[string]int{}, b.config.Step
	b.beginRanges(change, false)
	b.write(change)
	stats := b.stats()
	if err := b.commitChains(); err != nil {
		return stats, b.explain(err, change)
	}
	if err := b.conn.Commit(0, &b.batch); err != nil {
		return stats, b.explain(err, change)
	}
	b.limit(change, false)
	stats.Refused = b.lacking
	b.forgetRejected(change)
	b.dropTimeouts()
	b.release()
	b.sequence.Done()
	return stats, nil
}

// commitChains creates the chains that the elements in b.batch lead to, in a transaction of its
// own. A packet that is inside the table when the elements appear runs the rules from before, and
// would find a chain of the same transaction empty, and no frontend.
func (b *Dataplane) commitChains() error {
	err := b.conn.Commit(0, &b.begun[0], &b.begun[1], &b.chains)
	b.begun = [len(schemas)]nfnl.Batch{}
	return err
}

func (b *Dataplane) stats() dataplane.Stats {
	s := dataplane.Stats{Elements: b.batch.Elements() + b.chains.Elements(), Bytes: b.batch.Len() + b.chains.Len(), Refused: b.lacking}
	for _, x := range b.rests {
		s.Rest = append(s.Rest, x.service)
	}
	return s
}

// keepBatch is the largest buffer, in bytes, that is kept for the next change.
const keepBatch = 1 << 20

// release frees the memory of an unusually large batch.
func (b *Dataplane) release() {
	if b.batch.Len() > keepBatch {
		b.batch, b.writer.poolUpdates = nfnl.Batch{}, nil
	}
}

// write prepares and encodes a change.
func (b *Dataplane) write(change *desired.Change) {
	b.lacking = nil
	b.plan(change)
	b.encode(change)
}

// plan encodes the chains that a change needs, and finds out which slots of pools differ.
func (b *Dataplane) plan(change *desired.Change) {
	b.newTimeouts(change)
	b.updatePools(change)
}

// encode encodes a change that was planned, one family after the other. The old element of a key
// is deleted before the new one is added, as the kernel requires.
func (b *Dataplane) encode(change *desired.Change) {
	for f := range b.served {
		b.writer.write(del, b.schemas[f], change)
		b.writer.write(add, b.schemas[f], change)
	}
	for i := range change.Frontends {
		c := &change.Frontends[i]
		if c.Old != nil {
			if p := b.pools.Get(c.Old.Pool); p != nil {
				p.Unrefer(c.Key())
			}
		}
		if c.New != nil {
			b.pools.Get(c.New.Pool).Refer(c.New)
		}
	}
}

// updatePools applies the changes of pools to b.pools, and collects the updates to write in the writer.
func (b *Dataplane) updatePools(change *desired.Change) {
	w, left := &b.writer, false // whether a pool has left a counter, of which there were none
	w.poolUpdates = slices.Grow(w.poolUpdates[:0], len(change.Pools))
	for i := range change.Pools {
		c := &change.Pools[i]
		r := poolUpdate{id: c.ID, schema: b.schemas[c.Family], shared: c.Shared, before: noSelector, after: noSelector}
		r.scopeSets = r.schema.setsFor(c.Scope, c.Range)
		p := b.pools.Get(c.ID)
		if c.New {
			p = &pool{Pool: dataplane.NewPool(c), sets: r.scopeSets, shared: c.Shared}
			b.pools.Set(c.ID, p)
			if c.Algorithm == desired.RoundRobin {
				// So that nodes do not begin with the same backend (kubernetes #121591).
				b.random.Shuffle(len(c.Added), func(i, j int) { c.Added[i], c.Added[j] = c.Added[j], c.Added[i] })
			}
		} else {
			r.before = selectorOf(p)
		}
		draws, by := p.draws()
		if c.Shared {
			r.removed, r.added = p.share(c)
		} else if c.Sticky && !c.IPVS {
			r.removed, r.added = c.Removed, c.Added
		}
		if c.IPVS {
			p.ipvs += len(c.Added) - len(c.Removed)
		} else if c.New && len(c.Weights) == 0 && !c.Algorithm.Hashes() && b.rests[c.ID] == nil {
			// The common case of a cold start, without a search for slots and a list of their changes.
			p.Slots, r.all = c.Added, c.Added
		} else {
			if x := b.rests[c.ID]; x != nil && x.sets != p.sets { // of a former pool, which is in other sets
				b.spent[x.service.Namespace] = b.most - len(x.todo) // there is room for all
				w.poolUpdates = append(w.poolUpdates, poolUpdate{id: c.ID, schema: b.schemas[x.family], scopeSets: x.sets, before: noSelector, after: noSelector, slots: b.take(&pool{}, c.ID, x, len(x.todo))})
			}
			r.slots = b.step(p, c, draws, by, p.Update(c))
		}
		p.IfEmpty = c.IfEmpty
		x := &b.onDemand[c.Family][r.scopeSets.place]
		full := ^x.taken == 0
		if c.Gone {
			x.assignCounter(p, true)
			b.pools.Set(c.ID, nil)
		} else {
			r.after = b.prepareSelector(p)
		}
		w.poolUpdates = append(w.poolUpdates, r)
		left = left || full && ^x.taken != 0
	}
	b.continueRests()
	if left {
		b.passCounters()
	}
	for i := range w.poolUpdates {
		b.tellLacking(b.pools.Get(w.poolUpdates[i].id))
	}
}

const (
	dropSelector = -1 // value of an empty pool with the verdict Drop
	noSelector   = -2 // of a pool that does not exist
	ipvsSelector = -3 // of a pool that IPVS serves
	passSelector = -4 // of a pool with the verdict Pass
)

// selectorKey returns the key in picks for a value in the map pools. It is one for all sizes with session affinity,
// because the kernel follows every element of a map to chains and what it leads to, each time it validates the table.
func selectorKey(selector int) uint32 {
	if selector > 0 && selector&stickySelector != 0 {
		return stickySelector
	}
	return uint32(int32(selector))
}

// selectorOf returns a pool's value in the map pools: the upper bound of the random slot, or the number of slots with
// the flags of an algorithm; with the flag stickySelector; or one of these values.
func selectorOf(p *pool) int {
	n, by := p.draws()
	selector := pickSize(n)
	switch {
	case p.IfEmpty == desired.Pass:
		return passSelector
	case p.ipvs > 0:
		return ipvsSelector
	case n == 0 && p.IfEmpty == desired.Drop:
		return dropSelector
	case n == 0:
		return selector
	case n == 1: // in order, whatever the algorithm
	case p.counter.number > 0:
		selector = p.counter.selector()
	case by == desired.Maglev:
		selector = n | hashSelector
	case by == desired.MaglevPort:
		selector = n | hashSelector | portSelector
	}
	if p.Sticky {
		selector |= stickySelector
	}
	return selector
}

// Describe implements dataplane.Dataplane.
func (b *Dataplane) Describe(f *desired.Frontend, id desired.PoolID) dataplane.Detail {
	s := b.schemas[desired.FamilyOf(f.Addr())]
	key := fmt.Sprintf("%s . %d", strings.ToLower(f.Protocol.String()), f.Port())
	if !f.OnNode() {
		key = fmt.Sprintf("%s . %s", f.Addr(), key)
	}
	set := s.setsOf(f.FrontendKey, f.Scope).frontends
	if f.IsRange() {
		set, key = s.ranges, fmt.Sprintf("%s-%d", key, f.Last)
	}
	d := dataplane.Detail{Object: fmt.Sprintf("map %s %s %s { %s }", s.table.Family, tableName, set.Name, key)}
	if p := b.pools.Get(id); p != nil {
		d.Scheduler = p.Algorithm.String()
		if p.needsCounter() && p.counter.number == 0 {
			d.Scheduler = desired.Random.String() // no counter was left
		}
	}
	return d
}
