// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"errors"
	"fmt"
	"hash/fnv"

	"github.com/slipstream-proxy/slipstream/backend"
	"github.com/slipstream-proxy/slipstream/backend/nftables/nfnl"
	"github.com/slipstream-proxy/slipstream/desired"
	"golang.org/x/sys/unix"
)

// Reconcile implements backend.Backend.
//
// It reads what tables, sets and rules there are. A table that is as it should
// be is emptied of elements and filled anew, any other is replaced as a whole,
// in one transaction either way. Elements are not read and compared: to dump a
// set, the kernel starts from its beginning for every message of the answer (30
// s for a million elements on Linux 6.18), which makes reading dearer than
// writing.
func (b *Backend) Reconcile(full *desired.Change) (backend.Stats, error) {
	b.valid = false
	stats, err := b.reconcile(full, false)
	for tries := 0; errors.Is(err, nfnl.ErrGeneration) && tries < 5; tries++ {
		stats, err = b.reconcile(full, false)
	}
	if err != nil {
		// What is there can't be built upon; take nothing of it.
		stats, err = b.reconcile(full, true)
	}
	if err != nil {
		return stats, b.explain(err, full)
	}
	b.valid = true
	return stats, b.guard.reset(b)
}

// reconcile is one try. With replace, tables are replaced whatever they are.
func (b *Backend) reconcile(full *desired.Change, replace bool) (backend.Stats, error) {
	generation, err := b.conn.Generation()
	if err != nil {
		return backend.Stats{}, fmt.Errorf("reading the ruleset's generation: %w", err)
	}
	if replace {
		generation = 0 // whatever anybody else does meanwhile
	}
	b.batch = nfnl.Batch{}
	b.batch.Grow(estimate(full))
	b.pools = make([]*pool, 0, len(full.Pools))
	for f := range schemas {
		if err := b.prepare(f, replace); err != nil {
			return backend.Stats{}, err
		}
	}
	b.write(full)
	stats := backend.Stats{Elements: b.batch.Elements(), Bytes: b.batch.Len()}
	err = b.conn.Commit(&b.batch, generation)
	b.release()
	return stats, err
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

// prepare writes what it takes to have the family's table empty of Services.
func (b *Backend) prepare(f int, replace bool) error {
	s := &schemas[f]
	skeleton, err := b.skeleton(s)
	if err != nil {
		return err
	}
	b.guard.rules = skeleton.rules
	info, err := b.conn.Table(s.table)
	switch {
	case errors.Is(err, unix.ENOENT):
	case err != nil:
		return fmt.Errorf("reading table %s %s: %w", s.table.Family, tableName, err)
	case !replace && info.Comment == skeleton.comment && b.intact(s, skeleton.rules):
		for _, set := range s.serviceSets() {
			b.batch.FlushSet(s.table, set)
		}
		return nil
	default:
		b.batch.DeleteTable(s.table)
	}
	_, err = s.writeSkeleton(&b.batch, b.config, skeleton.comment)
	return err
}

// skeleton is a table without Services.
type skeleton struct {
	comment string // of the table: what it is, and a hash of what it consists of
	rules   int
}

// skeleton finds out what the table will be, without writing it to the batch.
func (b *Backend) skeleton(s *schema) (skeleton, error) {
	var scratch nfnl.Batch
	rules, err := s.writeSkeleton(&scratch, b.config, "")
	if err != nil {
		return skeleton{}, err
	}
	hash := fnv.New64a()
	hash.Write(scratch.Wire())
	return skeleton{fmt.Sprintf("%s, skeleton %016x", tableComment, hash.Sum64()), rules}, nil
}

// writeSkeleton writes the table, its sets, chains and rules, and says how many
// rules there are.
func (s *schema) writeSkeleton(batch *nfnl.Batch, c backend.Config, comment string) (int, error) {
	batch.AddTable(s.table, comment)
	for _, set := range s.sets() {
		batch.AddSet(s.table, set)
	}
	for _, c := range chains {
		batch.AddChain(s.table, c)
	}
	rules := ruleWriter{schema: s, batch: batch}
	for _, size := range pickSizes {
		batch.AddChain(s.table, nfnl.Chain{Name: drawChain(size)})
		rules.draw(size)
		batch.AddChain(s.table, nfnl.Chain{Name: pickChain(size)})
		rules.pick(size)
	}
	rules.static(c)
	drop := int32(dropDraw)
	batch.AddVerdict(s.table, s.picks, word(0), chainReject)
	batch.AddVerdict(s.table, s.picks, word(uint32(drop)), chainDrop)
	for _, size := range pickSizes {
		batch.AddVerdict(s.table, s.picks, word(uint32(size)), pickChain(size))
	}
	return rules.count, rules.err
}

// intact says whether the table still has its sets and as many rules as it was
// made with.
func (b *Backend) intact(s *schema, rules int) bool {
	n, err := b.countRules(s)
	return err == nil && n == rules && b.sameSets(s)
}

// sameSets says whether the table's sets are those of the schema, so that they
// can be filled anew.
func (b *Backend) sameSets(s *schema) bool {
	there := map[string]nfnl.Set{}
	if err := b.conn.Sets(s.table, func(set nfnl.Set) { there[set.Name] = set }); err != nil {
		return false
	}
	for _, want := range s.sets() {
		got, ok := there[want.Name]
		if !ok || got.KeyType != want.KeyType || got.KeyLen != want.KeyLen ||
			got.DataType != want.DataType || want.DataType != nfnl.TypeVerdict && got.DataLen != want.DataLen {
			return false
		}
	}
	return true
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
		case s.frontends.Name:
			if key, ok := s.decodeFrontendKey(refused.Key); ok {
				for _, c := range change.Frontends {
					if c.Key() == key {
						return fmt.Errorf("Service %s: frontend %s: %w", serviceOf(c), key, err)
					}
				}
			}
		case s.pools.Name, s.endpoints.Name:
			if id, ok := firstNumber(refused.Key); ok {
				for i := range change.Pools {
					if c := &change.Pools[i]; uint32(c.ID) == id {
						return fmt.Errorf("Service %s: %s endpoints: %w", c.Service, c.Family, err)
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
