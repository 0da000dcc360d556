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
// Where there is nothing of ours it starts cold. Otherwise it reads what tables,
// sets, chains and rules there are. What is as it should be stays, emptied of
// elements and filled anew; rules and chains that are not are replaced; all in one
// transaction. Elements are not read and compared: to dump a set, the kernel starts
// from its beginning for every message of the answer, which makes reading dearer
// than writing.
//
// A table is replaced as a whole only when its sets are of other types or when
// nothing else works. That is not quite without a gap: a packet that is on its
// way through the old table's rules at the moment of the commit finds its sets
// empty.
func (b *Backend) Reconcile(ctx context.Context, full *desired.Change) (dataplane.Stats, error) {
	b.sequence.Begin()
	b.forget(full)
	var skeletons [len(schemas)]*skeleton
	for f := range schemas {
		var err error
		if skeletons[f], err = schemas[f].skeleton(b.config, full); err != nil {
			return dataplane.Stats{}, err
		}
	}
	err := b.startCold(ctx, full, &skeletons)
	if errors.Is(err, errNotCold) {
		b.forget(full)
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

// forget makes ready for a full content.
func (b *Backend) forget(full *desired.Change) {
	b.batch = nfnl.Batch{}
	b.pools = make(dataplane.Pools[dataplane.Pool], 0, len(full.Pools))
	b.timeouts = [len(schemas)][]uint32{}
	// A packet that has just looked up its pool's number in the old content
	// must not find another pool by it in the new one. With other numbers it
	// finds none, and the rules try again.
	b.writer.base = rand.Uint32()
}

// replace makes the full content that of tables that there are.
func (b *Backend) replace(ctx context.Context, full *desired.Change, skeletons *[len(schemas)]*skeleton) error {
	b.batch.Grow(estimate(full))
	if err := b.newTimeouts(&b.batch, full); err != nil {
		return err
	}
	b.write(full)
	err := b.commit(ctx, skeletons, false)
	var refused *nfnl.BatchError
	if errors.As(err, &refused) {
		// What is there can't be built upon; take nothing of it.
		err = b.commit(ctx, skeletons, true)
	}
	return err
}

// maxTries is how often a table is read again because somebody changed the
// ruleset meanwhile. After that it is programmed as it was last seen.
const maxTries = 20

// commit sends the content in the batch, behind what it takes to make the tables
// ready for it. With replace, they are replaced whatever they are.
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
			return b.guard.reset(b, generation, written)
		case try > maxTries, !errors.Is(err, nfnl.ErrGeneration) && !errors.Is(err, nfnl.ErrInterrupted):
			return err
		}
	}
}

// estimate is roughly how many bytes a content takes, so that the buffer need
// not grow by copying.
func estimate(full *desired.Change) (n int) {
	const perFrontend, perPool, perEndpoint = 112, 48, 44
	n = 64<<10 + len(full.Frontends)*perFrontend + len(full.Pools)*perPool
	for i := range full.Pools {
		n += len(full.Pools[i].Added) * perEndpoint
	}
	return n
}

// prepare appends the batches that it takes to have the family's table empty of
// Services, and says whether they write the rules.
func (b *Backend) prepare(batches []*nfnl.Batch, s *schema, want *skeleton, replace bool) ([]*nfnl.Batch, bool, error) {
	there, err := b.look(s)
	if err != nil {
		return nil, false, err
	}
	var head nfnl.Batch
	switch {
	case !there.table:
	case replace || !there.compatible:
		head.DeleteTable(s.table)
	default:
		for _, set := range s.programmed() {
			if there.sets[set.Name] {
				head.FlushSet(s.table, set)
			}
		}
		b.forgetTimeouts(&head, s, &there)
		foreign := slices.DeleteFunc(slices.Clone(there.chains), func(name string) bool {
			return name == want.marker || name == there.fingerprint.chain() || s.hasChain(name) || isRememberChain(name)
		})
		if there.intact() && there.marked() == want.marker && len(foreign) == 0 {
			// With the rules, the sets that they use are there too.
			head.AddTable(s.table, tableComment) // which wakes a dormant one
			for i := range s.sides {
				s.writePicks(&head, &s.sides[i])
			}
			return append(batches, &head), false, nil
		}
		head.FlushTable(s.table)
		for _, chain := range foreign {
			head.DeleteChain(s.table, chain)
		}
		if there.intact() {
			head.DeleteChain(s.table, there.fingerprint.chain()) // of what these rules were
		}
	}
	return append(batches, &head, &want.batch, &want.entry), true, nil
}

// forgetTimeouts takes the rules out of chains that remember for a time that no
// frontend has any more, and deletes those that have been without rules. (A chain
// cannot always be deleted with the last element that leads to it: before Linux 6.2
// the kernel lets go of such elements a little later.)
func (b *Backend) forgetTimeouts(head *nfnl.Batch, s *schema, there *found) {
	for _, name := range there.chains {
		seconds, is := timeoutOf(name)
		switch {
		case !is || slices.Contains(b.timeouts[s.family()], seconds):
		case there.remembered[name] == 0:
			head.DeleteChain(s.table, name)
		default:
			head.FlushChain(s.table, name)
		}
	}
}

// found is what the kernel has under our table's name.
type found struct {
	outline
	table      bool
	sets       map[string]bool // of ours
	compatible bool            // all of these are of our types
}

func (b *Backend) look(s *schema) (found, error) {
	l := found{sets: map[string]bool{}}
	switch _, err := b.conn.Table(s.table); {
	case errors.Is(err, unix.ENOENT):
		return l, nil
	case err != nil:
		return l, fmt.Errorf("reading table %s %s: %w", s.table.Family, tableName, err)
	}
	l.table = true
	var err error
	l.outline, err = b.outline(s)
	err = errors.Join(err, nfnl.Undisturbed(func() error {
		clear(l.sets)
		l.compatible = true
		return b.conn.Sets(s.table, func(got nfnl.Set) {
			for _, want := range s.sets() {
				if want.Name == got.Name {
					l.sets[got.Name] = true
					l.compatible = l.compatible && sameType(got, *want)
				}
			}
		})
	}))
	if err != nil {
		return l, fmt.Errorf("reading table %s %s: %w", s.table.Family, tableName, err)
	}
	return l, nil
}

func sameType(a, b nfnl.Set) bool {
	return a.KeyType == b.KeyType && a.KeyLen == b.KeyLen && a.Flags == b.Flags && a.DataType == b.DataType &&
		(a.DataType == nfnl.TypeVerdict || a.DataLen == b.DataLen)
}

// markerPrefix starts the name of an empty chain that nothing leads to. The rest
// is a hash of all that a table consists of beside Services, so that the next
// run, perhaps of another version or configuration, knows what it finds.
const markerPrefix = "skeleton-"

// skeleton is a table without Services.
type skeleton struct {
	batch  nfnl.Batch // makes it, where there is none or one without rules
	entry  nfnl.Batch // makes packets enter it
	marker string
}

func (s *schema) skeleton(c dataplane.Config, full *desired.Change) (*skeleton, error) {
	k := &skeleton{}
	entry := ruleWriter{schema: s, batch: &k.entry}
	entry.entry()
	if err := errors.Join(s.writeSkeleton(&k.batch, c, full), entry.err); err != nil {
		return nil, err
	}
	hash := fnv.New64a()
	hash.Write(k.batch.Wire())
	hash.Write(k.entry.Wire())
	k.marker = fmt.Sprintf("%s%016x", markerPrefix, hash.Sum64())
	k.batch.AddChain(s.table, nfnl.Chain{Name: k.marker})
	return k, nil
}

// writeSkeleton writes the table, its sets, chains and rules, but for those by which
// packets enter it.
func (s *schema) writeSkeleton(batch *nfnl.Batch, c dataplane.Config, full *desired.Change) error {
	batch.AddTable(s.table, tableComment)
	return s.writeInside(batch, c, full)
}

// writeInside writes what the table has.
func (s *schema) writeInside(batch *nfnl.Batch, c dataplane.Config, full *desired.Change) error {
	for _, set := range s.sets() {
		batch.AddSet(s.table, set)
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
	return rules.err
}

// hasChain says whether a chain is one of those that writeSkeleton makes.
func (s *schema) hasChain(name string) bool {
	return slices.ContainsFunc(chains, func(c nfnl.Chain) bool { return c.Name == name }) ||
		slices.ContainsFunc(s.sides[:], func(d side) bool { return slices.Contains(d.chainNames(), name) })
}

// explain adds to a refusal of the kernel's which object it is about.
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
