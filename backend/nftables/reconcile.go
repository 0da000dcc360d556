// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"

	"github.com/slipstream-proxy/slipstream/backend"
	"github.com/slipstream-proxy/slipstream/backend/nftables/nfnl"
	"github.com/slipstream-proxy/slipstream/desired"
	"golang.org/x/sys/unix"
)

// Reconcile implements backend.Backend.
//
// It reads what tables, sets, chains and rules there are. What is as it should
// be stays, emptied of elements and filled anew; rules and chains that are not
// are replaced; all in one transaction. Elements are not read and compared: to
// dump a set, the kernel starts from its beginning for every message of the
// answer, which makes reading dearer than writing.
//
// A table is replaced as a whole only when its sets are of other types or when
// nothing else works. That is not quite without a gap: a packet that is on its
// way through the old table's rules at the moment of the commit finds its sets
// empty.
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
	there, err := b.look(s)
	if err != nil {
		return err
	}
	marker, rules, err := s.skeleton(b.config)
	if err != nil {
		return err
	}
	b.guard.rules = rules
	switch {
	case !there.table:
	case replace || !there.compatible:
		b.batch.DeleteTable(s.table)
	default:
		for _, set := range s.sets() {
			if there.sets[set.Name] && set != s.picks {
				b.batch.FlushSet(s.table, set)
			}
		}
		foreign := slices.DeleteFunc(there.chains, func(name string) bool { return name == marker || s.hasChain(name) })
		if there.rules == rules && there.marked == marker && len(foreign) == 0 {
			return nil // with the rules, the sets that they use are there too
		}
		if there.sets[s.picks.Name] {
			b.batch.FlushSet(s.table, s.picks)
		}
		b.batch.FlushTable(s.table)
		for _, chain := range foreign {
			b.batch.DeleteChain(s.table, chain)
		}
	}
	_, err = s.writeSkeleton(&b.batch, b.config)
	b.batch.AddChain(s.table, nfnl.Chain{Name: marker})
	return err
}

// found is what the kernel has under our table's name.
type found struct {
	table      bool
	chains     []string
	marked     string // the marker among them
	rules      int
	sets       map[string]bool // of ours
	compatible bool            // all of these are of our types
}

func (b *Backend) look(s *schema) (found, error) {
	l := found{sets: map[string]bool{}, compatible: true}
	switch _, err := b.conn.Table(s.table); {
	case errors.Is(err, unix.ENOENT):
		return l, nil
	case err != nil:
		return l, fmt.Errorf("reading table %s %s: %w", s.table.Family, tableName, err)
	}
	l.table = true
	err := errors.Join(
		b.conn.Chains(s.table, func(name string) {
			l.chains = append(l.chains, name)
			if strings.HasPrefix(name, markerPrefix) {
				l.marked = name
			}
		}),
		b.conn.Rules(s.table, func(string) { l.rules++ }),
		b.conn.Sets(s.table, func(got nfnl.Set) {
			for _, want := range s.sets() {
				if want.Name == got.Name {
					l.sets[got.Name] = true
					l.compatible = l.compatible && sameType(got, *want)
				}
			}
		}),
	)
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

// skeleton is the name of the marker and the number of rules.
func (s *schema) skeleton(c backend.Config) (marker string, rules int, err error) {
	var scratch nfnl.Batch
	if rules, err = s.writeSkeleton(&scratch, c); err != nil {
		return "", 0, err
	}
	hash := fnv.New64a()
	hash.Write(scratch.Wire())
	return fmt.Sprintf("%s%016x", markerPrefix, hash.Sum64()), rules, nil
}

// writeSkeleton writes the table, its sets, chains and rules, and says how many
// rules there are.
func (s *schema) writeSkeleton(batch *nfnl.Batch, c backend.Config) (int, error) {
	batch.AddTable(s.table, tableComment)
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

// hasChain says whether a chain is one of those that writeSkeleton makes.
func (s *schema) hasChain(name string) bool {
	return slices.ContainsFunc(chains, func(c nfnl.Chain) bool { return c.Name == name }) ||
		slices.ContainsFunc(pickSizes, func(n int) bool { return name == drawChain(n) || name == pickChain(n) })
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
						return fmt.Errorf("programming Service %s: frontend %s: %w", serviceOf(c), key, err)
					}
				}
			}
		case s.pools.Name, s.endpoints.Name:
			if id, ok := firstNumber(refused.Key); ok {
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
