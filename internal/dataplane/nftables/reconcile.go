// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"strings"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"golang.org/x/sys/unix"
)

// Reconcile implements dataplane.Dataplane.
//
// If none of the tables exists, it is a cold start. Otherwise one transaction flushes and refills the sets, and
// replaces the chains and rules if they differ. Elements are not read and compared: for every message of a dump, the
// kernel walks the set from its beginning, which makes reading slower than writing.
//
// A NodePort of versions that had it once for each address is in other maps afterwards. A packet
// that is inside the old rules at the moment of the commit may be lost; a TCP client sends it again.
//
// A table is replaced as a whole only if its sets have other types or the kernel refuses the transaction. A packet that
// is inside the old table at the moment of the commit then finds its sets empty, and may be lost.
func (b *Dataplane) Reconcile(ctx context.Context, full *desired.Change) (dataplane.Stats, error) {
	b.sequence.Begin()
	b.reset(full)
	want := b.skeletons(full)
	err := b.startCold(ctx, full, &want)
	if errors.Is(err, errNotCold) {
		b.reset(full)
		err = b.replace(ctx, full, &want)
	}
	b.limit(full, true)
	stats := b.stats()
	if err != nil {
		return stats, b.explain(err, full)
	}
	b.release()
	b.sequence.Done()
	return stats, nil
}

// reset prepares for a full content.
func (b *Dataplane) reset(full *desired.Change) {
	b.batch, b.chains, b.unsealed = nfnl.Batch{}, nfnl.Batch{}, nil
	b.pools = make(dataplane.Pools[pool], 0, len(full.Pools))
	b.rests, b.spent, b.most = map[desired.PoolID]*rest{}, map[string]int{}, math.MaxInt
	b.timeouts = [len(schemas)]map[uint32]int{{}, {}}
	for f := range b.onDemand {
		for i := range b.onDemand[f] {
			b.onDemand[f][i] = onDemand{chains: map[int]bool{}}
		}
	}
	for f := range schemas {
		b.writer.keys[f] = map[*nfnl.Set]map[string]string{}
	}
	// A packet that looked up its pool's number in the old content must not find a different pool by that number in the
	// new content. With other numbers it finds none, and the rules try again.
	b.writer.base = firstPool + b.random.Uint32()>>1
}

// replace programs the full content if a table exists.
func (b *Dataplane) replace(ctx context.Context, full *desired.Change, want *skeletons) error {
	b.batch.Grow(estimate(full))
	b.write(full)
	// The kernel refuses this if the tables are not like the wanted ones. They are replaced then.
	_ = b.commitChains()
	err := b.commit(ctx, want, false)
	var refused *nfnl.BatchError
	if errors.As(err, &refused) {
		// The kernel refused to modify the existing tables; delete them.
		err = b.commit(ctx, want, true)
	}
	return err
}

// commit sends the content in the batch, preceded by the batches that prepare the tables.
// With replace, existing tables are deleted.
func (b *Dataplane) commit(ctx context.Context, want *skeletons, replace bool) error {
	var written [len(schemas)]bool
	generation, err := b.conn.CommitRead(ctx, func() (batches []*nfnl.Batch, err error) {
		var tail nfnl.Batch
		for f := range b.served {
			t, err := b.conn.Contents(b.schemas[f].table)
			if err != nil {
				return nil, err
			}
			head := &nfnl.Batch{}
			batches = append(batches, head)
			if written[f] = b.prepare(head, &tail, b.schemas[f], t, want[f], replace); written[f] {
				batches = append(batches, &want[f].batch, &want[f].entry)
			}
		}
		return append(batches, &b.chains, &b.batch, &tail), nil
	})
	if err != nil {
		return err
	}
	return b.detector.reset(b, generation, want, written)
}

// estimate returns the approximate size of a content in bytes, so that the buffer is allocated once.
func estimate(full *desired.Change) (n int) {
	const perFrontend, perPool, perEndpoint = 112, 48, 44
	n = 64<<10 + len(full.Frontends)*perFrontend + len(full.Pools)*perPool
	for i := range full.Pools {
		n += len(full.Pools[i].Added) * perEndpoint
	}
	return n
}

// prepare leaves a family's table without Services, and reports whether the skeleton is to be written:
//
//	existing table        changes              skeleton
//	none                                       written
//	with other set types  delete the table     written
//	with other rules      flush sets and rules,
//	                      delete other chains  written
//	with the same rules   flush sets           kept
//
// tail deletes the sets and flowtables of other processes, once no rule uses them.
func (b *Dataplane) prepare(head, tail *nfnl.Batch, s *schema, t *nfnl.Contents, want *skeleton, replace bool) (write bool) {
	if t == nil {
		return true
	}
	sets, compatible := t.Compatible(s.sets())
	if replace || !compatible {
		head.DeleteTable(s.table)
		return true
	}
	for i := range t.Sets {
		if set := &t.Sets[i]; !s.owns(set) && set.Flags&unix.NFT_SET_ANONYMOUS == 0 { // those without a name go with their rules
			tail.DeleteSet(s.table, set.Name)
		}
	}
	for _, ft := range t.Flowtables {
		tail.DeleteFlowtable(s.table, ft.Name)
	}
	for _, set := range sets {
		if set.Flags&unix.NFT_SET_EVAL == 0 { // rules write the elements of the others
			head.FlushSet(s.table, set)
		}
	}
	if write = !sealed(t, want.hash); write {
		head.FlushTable(s.table)
	} else {
		head.AddTable(s.table, tableComment) // clears the flag of a dormant table
		for d := range s.eachScopeSets {
			s.writePicks(b.config, head, d)
		}
	}
	wanted, _ := want.batch.Written()
	for _, c := range t.Chains {
		seconds, remembers := timeoutOf(c.Name)
		created := remembers || s.isOnDemandChain(c.Name) // when they were first needed
		switch {
		case s.isCreated(c.Name) && len(c.Base) > 0: // another process's
			head.FlushChain(s.table, c.Name)
			head.DeleteChain(s.table, c.Name)
		case !created && write && !hasChain(&wanted, c.Name):
			head.DeleteChain(s.table, c.Name)
		case strings.HasPrefix(c.Name, sealPrefix):
			head.FlushChain(s.table, c.Name)
		case !created, b.timeouts[s.family][seconds] > 0, b.needsChain(s, c.Name):
		case slices.ContainsFunc(t.Rules, func(r nfnl.RuleInfo) bool { return r.Chain == c.Name }):
			// A chain cannot be deleted together with the last element that refers to it: before Linux 6.2 the kernel
			// releases such elements later. The next Reconcile deletes it.
			head.FlushChain(s.table, c.Name)
		default:
			head.DeleteChain(s.table, c.Name)
		}
	}
	return write
}

// skeleton is a table without Services.
type skeleton struct {
	batch nfnl.Batch // creates it, or completes a table without rules
	entry nfnl.Batch // lets packets enter it
	hash  uint64     // of both
}

// skeletons are the skeletons of all families.
type skeletons [len(schemas)]*skeleton

func (b *Dataplane) skeletons(full *desired.Change) (want skeletons) {
	for f := range schemas {
		b.schemas[f] = &schemasFor[full.Ranges][f]
		want[f], b.first[f] = b.schemas[f].skeleton(b.config, full, true), nfnl.Batch{}
		if !full.Ranges {
			rangedSchemas[f].writeRanges(&b.first[f], b.config, full)
		}
	}
	return want
}

func (s *schema) skeleton(c dataplane.Config, full *desired.Change, complete bool) *skeleton {
	k := &skeleton{}
	k.batch.AddTable(s.table, tableComment)
	if s.write(&k.batch, c, full); s.ranged && complete {
		s.writeEarly(&k.batch, c, full)
	}
	s.writeEntry(&k.entry)
	hash := fnv.New64a()
	hash.Write(k.batch.Wire())
	hash.Write(k.entry.Wire())
	k.hash = hash.Sum64()
	return k
}

// write writes the table's sets, chains and rules, except for those of writeEntry.
func (s *schema) write(batch *nfnl.Batch, c dataplane.Config, full *desired.Change) {
	base := *s
	base.ranged = false
	for _, set := range base.sets() {
		batch.AddSet(s.table, set)
	}
	for _, reason := range counters {
		batch.AddCounter(s.table, reason)
	}
	for _, c := range chains {
		batch.AddChain(s.table, c)
	}
	rules := ruleWriter{schema: &base, batch: batch}
	for d := range base.eachScopeSets {
		rules.scope(c, d)
	}
	rules.static(c, full)
	if s.ranged {
		s.writeRanges(batch, c, full)
	}
}

// explain adds the Service to a refusal by the kernel of an element of a frontend or a pool.
func (b *Dataplane) explain(err error, change *desired.Change) error {
	var refused *nfnl.BatchError
	if !errors.As(err, &refused) || len(refused.Key) < 4 {
		return err
	}
	of := func(service desired.ServicePort, object string) error {
		if err = fmt.Errorf("%s: %w", object, err); refused.Lacks() {
			return &dataplane.Refusal{Service: service, Err: err}
		}
		return fmt.Errorf("programming Service %s: %w", service, err)
	}
	for f := range schemas {
		s := b.schemas[f]
		if s.table != refused.Table {
			continue
		}
		part, _ := s.decodeFrontendKey(refused.Key)
		for _, c := range change.Frontends {
			if k := c.Key(); s.is(k.Addr()) && (bytes.HasPrefix(refused.Key, s.frontendKey(nil, k)) || s.ranged && refused.Object == s.ranges.Name && k.IsRange() && k.Overlaps(part)) {
				return of(cmp.Or(c.New, c.Old).Service, "frontend "+k.String())
			}
		}
		for i := range change.Pools {
			// Numbers of pools are random, so no other key begins with one.
			if c := &change.Pools[i]; b.writer.number(c.ID) == firstNumber(refused.Key) {
				return of(c.Service, c.Family.String()+" endpoints")
			}
		}
	}
	return err
}

// Cleanup implements dataplane.Dataplane. It first removes the rules through which packets enter the tables, waits
// until no packet is inside, and then deletes the tables. Otherwise a packet inside a table would find its rules but
// empty sets, and be rejected even if another proxy, such as kube-proxy, serves the Service.
func (b *Dataplane) Cleanup(ctx context.Context) error {
	b.sequence.Begin()
	var closeEntries, remove nfnl.Batch
	for f := range schemas {
		if t, err := b.conn.Contents(limitSchemas[f].table); err == nil && t != nil {
			closeEntries.DeleteTable(limitSchemas[f].table)
		}
		table := schemas[f].table
		t, err := b.conn.Contents(table)
		switch {
		case nfnl.IsUnsupported(err), err == nil && t == nil:
			continue
		case err != nil:
			return err
		}
		for _, e := range entries {
			if hasChain(t, e.base) {
				closeEntries.FlushChain(table, e.base)
			}
		}
		remove.DeleteTable(table)
	}
	if !closeEntries.Empty() {
		if err := b.conn.Commit(0, &closeEntries); err != nil {
			return err
		}
		if err := nfnl.Settle(b.config.NetNS); err != nil {
			return err
		}
	}
	return b.conn.Commit(0, &remove)
}
