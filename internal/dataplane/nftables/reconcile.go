// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"golang.org/x/sys/unix"
)

// Reconcile implements dataplane.Dataplane.
//
// If none of the tables exists, it is a cold start. Otherwise one transaction flushes and
// refills the sets, and replaces the chains and rules if they differ. Elements are not
// read and compared: for every message of a dump, the kernel walks the set from its
// beginning, which makes reading slower than writing.
//
// A table is replaced as a whole only if its sets have other types or the kernel refuses
// the transaction. A packet that is inside the old table at the moment of the commit then
// finds its sets empty, and may be lost.
func (b *Backend) Reconcile(ctx context.Context, full *desired.Change) (dataplane.Stats, error) {
	b.sequence.Begin()
	b.reset(full)
	var skeletons [len(schemas)]*skeleton
	for f := range schemas {
		skeletons[f] = schemas[f].skeleton(b.config, full)
	}
	err := b.startCold(ctx, full, &skeletons)
	if errors.Is(err, errNotCold) {
		b.reset(full)
		err = b.replace(ctx, full, &skeletons)
	}
	stats := dataplane.Stats{Elements: b.batch.Elements(), Bytes: b.batch.Len()}
	if err != nil {
		return stats, b.explain(err, full)
	}
	b.release()
	b.sequence.Done()
	return stats, nil
}

// reset prepares for a full content.
func (b *Backend) reset(full *desired.Change) {
	b.batch = nfnl.Batch{}
	b.pools = make(dataplane.Pools[dataplane.Pool], 0, len(full.Pools))
	b.timeouts = [len(schemas)][]uint32{}
	// A packet that looked up its pool's number in the old content must not find
	// a different pool by that number in the new content. With other numbers it
	// finds none, and the rules try again.
	b.writer.base = rand.Uint32()
}

// replace programs the full content if a table exists.
func (b *Backend) replace(ctx context.Context, full *desired.Change, skeletons *[len(schemas)]*skeleton) error {
	b.batch.Grow(estimate(full))
	b.write(full)
	err := b.commit(ctx, skeletons, false)
	var refused *nfnl.BatchError
	if errors.As(err, &refused) {
		// The kernel refused to modify the existing tables; delete them.
		err = b.commit(ctx, skeletons, true)
	}
	return err
}

// maxTries is how often the tables are read again because another process changed the
// ruleset meanwhile. After that, the commit does not check the generation.
const maxTries = 20

// commit sends the content in the batch, preceded by the batches that prepare the tables.
// With replace, existing tables are deleted.
func (b *Backend) commit(ctx context.Context, skeletons *[len(schemas)]*skeleton, replace bool) error {
	for try := 1; ; try++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		generation, err := b.conn.Generation()
		if err != nil {
			return fmt.Errorf("reading the ruleset's generation: %w", err)
		}
		if try > maxTries {
			generation = 0
		}
		var batches []*nfnl.Batch
		var written [len(schemas)]bool
		for f := range b.served {
			if err == nil {
				batches, written[f], err = b.prepare(batches, &schemas[f], skeletons[f], replace)
			}
		}
		if err == nil {
			err = b.conn.Commit(generation, append(batches, &b.batch)...)
		}
		switch {
		case err == nil:
			return b.detector.reset(b, generation, written)
		case try > maxTries, !errors.Is(err, nfnl.ErrGeneration) && !errors.Is(err, nfnl.ErrInterrupted):
			return err
		}
	}
}

// estimate returns the approximate size of a content in bytes, so that the buffer is
// allocated once.
func estimate(full *desired.Change) (n int) {
	const perFrontend, perPool, perEndpoint = 112, 48, 44
	n = 64<<10 + len(full.Frontends)*perFrontend + len(full.Pools)*perPool
	for i := range full.Pools {
		n += len(full.Pools[i].Added) * perEndpoint
	}
	return n
}

// prepare appends the batches that leave the family's table with the wanted rules and
// without Services, and reports whether they write the rules:
//
//	existing table        batches
//	none                  create the table
//	with other set types  delete and create the table
//	with other rules      flush sets and rules, delete other chains, write the rules
//	with the same rules   flush sets
func (b *Backend) prepare(batches []*nfnl.Batch, s *schema, want *skeleton, replace bool) ([]*nfnl.Batch, bool, error) {
	existing, err := b.readExisting(s)
	if err != nil {
		return nil, false, err
	}
	var head nfnl.Batch
	switch {
	case !existing.table:
	case replace || !existing.compatible:
		head.DeleteTable(s.table)
	default:
		s.flush(&head, &existing)
		b.deleteTimeouts(&head, s, &existing)
		other := existing.otherChains(s, want)
		if existing.intact() && existing.marked() == want.marker && len(other) == 0 {
			s.keepRules(&head)
			return append(batches, &head), false, nil
		}
		s.deleteRules(&head, &existing, other)
	}
	return append(batches, &head, &want.batch, &want.entry), true, nil
}

// flush deletes the elements that the proxy writes.
func (s *schema) flush(head *nfnl.Batch, existing *existingTable) {
	for _, set := range s.programmed() {
		if existing.sets[set.Name] {
			head.FlushSet(s.table, set)
		}
	}
}

// keepRules completes a table with the wanted rules, and so with all sets, after flush.
func (s *schema) keepRules(head *nfnl.Batch) {
	head.AddTable(s.table, tableComment) // clears the flag of a dormant table
	for i := range s.sides {
		s.writePicks(head, &s.sides[i])
	}
}

// deleteRules deletes all rules, the chains that are not wanted, and the fingerprint.
func (s *schema) deleteRules(head *nfnl.Batch, existing *existingTable, other []string) {
	head.FlushTable(s.table)
	for _, chain := range other {
		head.DeleteChain(s.table, chain)
	}
	if existing.intact() {
		head.DeleteChain(s.table, existing.fingerprint.chain())
	}
}

// otherChains lists the chains that belong neither to the wanted skeleton nor to session
// affinity.
func (e *existingTable) otherChains(s *schema, want *skeleton) []string {
	return slices.DeleteFunc(slices.Clone(e.chains), func(name string) bool {
		return name == want.marker || name == e.fingerprint.chain() || s.hasChain(name) || isRememberChain(name)
	})
}

// deleteTimeouts flushes the chains for timeouts that no frontend has, and deletes those
// that an earlier run has flushed. (A chain cannot be deleted together with the last
// element that refers to it: before Linux 6.2 the kernel releases such elements later.)
func (b *Backend) deleteTimeouts(head *nfnl.Batch, s *schema, existing *existingTable) {
	for _, name := range existing.chains {
		seconds, is := timeoutOf(name)
		switch {
		case !is || slices.Contains(b.timeouts[s.family], seconds):
		case existing.remembered[name] == 0:
			head.DeleteChain(s.table, name)
		default:
			head.FlushChain(s.table, name)
		}
	}
}

// existingTable is the kernel's table with the schema's name.
type existingTable struct {
	outline
	table      bool
	sets       map[string]bool // of the schema's sets, those that exist
	compatible bool            // the sets have the schema's types
}

func (b *Backend) readExisting(s *schema) (existingTable, error) {
	e := existingTable{sets: map[string]bool{}}
	switch _, err := b.conn.Table(s.table); {
	case errors.Is(err, unix.ENOENT):
		return e, nil
	case err != nil:
		return e, fmt.Errorf("reading table %s %s: %w", s.table.Family, tableName, err)
	}
	e.table = true
	var err error
	e.outline, err = b.outline(s)
	err = errors.Join(err, nfnl.Undisturbed(func() error {
		clear(e.sets)
		e.compatible = true
		return b.conn.Sets(s.table, func(got nfnl.Set) {
			for _, want := range s.sets() {
				if want.Name == got.Name {
					e.sets[got.Name] = true
					e.compatible = e.compatible && sameType(got, *want)
				}
			}
		})
	}))
	if err != nil {
		return e, fmt.Errorf("reading table %s %s: %w", s.table.Family, tableName, err)
	}
	return e, nil
}

func sameType(a, b nfnl.Set) bool {
	return a.KeyType == b.KeyType && a.KeyLen == b.KeyLen && a.Flags == b.Flags && a.DataType == b.DataType &&
		(a.DataType == nfnl.TypeVerdict || a.DataLen == b.DataLen)
}

// markerPrefix is the prefix of the name of an empty, unused chain. The rest of the name
// is a hash of the skeleton, by which the next run, perhaps of another version or with
// another configuration, recognizes the table.
const markerPrefix = "skeleton-"

// skeleton is a table without Services.
type skeleton struct {
	batch  nfnl.Batch // creates it, or completes a table without rules
	entry  nfnl.Batch // lets packets enter it
	marker string
}

func (s *schema) skeleton(c dataplane.Config, full *desired.Change) *skeleton {
	k := &skeleton{}
	k.batch.AddTable(s.table, tableComment)
	s.write(&k.batch, c, full)
	s.writeEntry(&k.entry)
	hash := fnv.New64a()
	hash.Write(k.batch.Wire())
	hash.Write(k.entry.Wire())
	k.marker = fmt.Sprintf("%s%016x", markerPrefix, hash.Sum64())
	k.batch.AddChain(s.table, nfnl.Chain{Name: k.marker})
	return k
}

// write writes the table's sets, chains and rules, except for those of writeEntry.
func (s *schema) write(batch *nfnl.Batch, c dataplane.Config, full *desired.Change) {
	for _, set := range s.sets() {
		batch.AddSet(s.table, set)
	}
	for _, reason := range counters {
		batch.AddCounter(s.table, reason)
	}
	for _, c := range chains {
		batch.AddChain(s.table, c)
	}
	rules := ruleWriter{schema: s, batch: batch}
	for i := range s.sides {
		d := &s.sides[i]
		for _, name := range d.chainNames() {
			batch.AddChain(s.table, nfnl.Chain{Name: name})
		}
		rules.affinity(d)
		rules.picks(d)
	}
	rules.static(c, full)
	for i := range s.sides {
		s.writePicks(batch, &s.sides[i])
	}
}

// hasChain reports whether write creates a chain.
func (s *schema) hasChain(name string) bool {
	return slices.ContainsFunc(chains, func(c nfnl.Chain) bool { return c.Name == name }) ||
		slices.ContainsFunc(s.sides[:], func(d side) bool { return slices.Contains(d.chainNames(), name) })
}

// explain adds the Service to a refusal by the kernel.
func (b *Backend) explain(err error, change *desired.Change) error {
	var refused *nfnl.BatchError
	if !errors.As(err, &refused) || refused.Key == nil {
		return err
	}
	for f := range schemas {
		s := &schemas[f]
		if s.table != refused.Table {
			continue
		}
		switch refused.Object {
		case s.sides[desired.Cluster].frontends.Name, s.sides[desired.Local].frontends.Name, s.external.Name, s.sticky.Name, s.restricted.Name, s.sources.Name:
			if key, ok := s.decodeFrontendKey(refused.Key); ok {
				for _, c := range change.Frontends {
					if c.Key() == key {
						return fmt.Errorf("programming Service %s: frontend %s: %w", serviceOf(c), key, err)
					}
				}
			}
		case s.pools.Name, s.sides[desired.Cluster].endpoints.Name, s.sides[desired.Local].endpoints.Name, s.members.Name:
			if len(refused.Key) >= 4 {
				id := firstNumber(refused.Key) - b.writer.base
				for i := range change.Pools {
					if c := &change.Pools[i]; uint32(c.ID) == id {
						return fmt.Errorf("programming Service %s: %s endpoints: %w", c.Service, c.Family, err)
					}
				}
			}
		}
	}
	return err
}

func serviceOf(c desired.FrontendChange) desired.ServicePort {
	if c.New != nil {
		return c.New.Service
	}
	return c.Old.Service
}
