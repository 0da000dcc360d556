// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/xtables"
)

// guard notices when another program modifies our rules.
//
// The kernel has a stamp that is cheap to read and differs after each change. While the stamp
// is the one expected after our own restores, no other program has changed a table. Otherwise,
// and after a full restore, Check reads the tables: each chain of ours must have as many rules
// as were written, and the rules that lead packets to our chains must exist.
type guard struct {
	watch

	stamp stamp     // the expected one
	known bool      // all was well at that stamp
	next  time.Time // of the next look, so that looks take at most 1/lookShare of the time
}

const lookShare = 20

// stamp is the generation of nf_tables, which is one for all tables, or the descriptions
// of tables in x_tables, by family and index in chainTables.
type stamp struct {
	generation uint32
	tables     [2][2]xtables.Info
}

// watch is how to look at the tables of one variant.
type watch interface {
	stamp(of []*table) (stamp, error)
	// expect changes a stamp to the one after a restore of ours with some transactions,
	// which adds entries to a table (or removes them).
	expect(s *stamp, f desired.Family, table, entries, commits int)
	// look counts rules in a table. Known are the expected chains.
	look(f desired.Family, table string, known registry) (*tally, error)
	// packets returns how many packets each rule of a chain has matched, in order.
	packets(f desired.Family, table, chain string) ([]uint64, error)
	close() error
}

// tally is the rules of a table.
type tally struct {
	rules map[string]int32 // in each chain of ours
	jumps map[string]int   // to each chain of ours, from chains of others
}

func newTally() *tally { return &tally{map[string]int32{}, map[string]int{}} }

// differs is a chain that has not as many rules as is known, or "".
func (t *tally) differs(known registry) string {
	for name, record := range known {
		if t.rules[name] != record.rules {
			return name
		}
	}
	return ""
}

func openGuard(v Variant, netns int) (g guard, err error) {
	if v == NFT {
		g.watch, err = openNFT(netns)
	} else {
		g.watch, err = openLegacy(netns)
	}
	return g, err
}

// committed is called after the last restore of a change. It compares the stamp with the
// expected one. Otherwise a change of another program while iptables-restore waits for its
// lock would not be noticed.
func (g *guard) committed(of []*table) error {
	now, err := g.watch.stamp(of)
	g.known = err == nil && g.known && now.is(g.stamp)
	g.stamp = now
	return err
}

// is says whether a stamp is the expected one. Of an expected table, all but the number of
// entries may be unknown.
func (s stamp) is(expected stamp) bool {
	for f := range expected.tables {
		for i, e := range expected.tables[f] {
			if e.Size == 0 {
				s.tables[f][i] = xtables.Info{Entries: s.tables[f][i].Entries}
			}
		}
	}
	return s == expected
}

// Check implements dataplane.Dataplane. It finds chains and rules that were removed, and
// sets that have lost members.
func (b *Backend) Check(ctx context.Context) error {
	if err := b.sequence.Check(); err != nil {
		return err
	}
	if err := b.checkSets(); err != nil {
		return err
	}
	now, err := b.guard.watch.stamp(b.tables)
	if err != nil {
		return err
	}
	start := time.Now()
	if b.guard.known && now == b.guard.stamp || start.Before(b.guard.next) {
		return b.due()
	}
	defer func() { b.guard.next = time.Now().Add(lookShare * time.Since(start)) }()
	for _, t := range b.tables {
		for name, known := range t.known {
			if err := b.checkTable(t.family, name, known); err != nil {
				return err
			}
		}
	}
	b.guard.stamp, b.guard.known = now, true
	return b.due()
}

func (b *Backend) checkTable(f desired.Family, table string, known registry) error {
	got, err := b.guard.look(f, table, known)
	if err != nil {
		return fmt.Errorf("reading table %s of %s: %w", table, f, err)
	}
	damaged := func(how string) error {
		return fmt.Errorf("%w: iptables-%s, %s, table %s: %s", dataplane.ErrDamaged, b.variant, f, table, how)
	}
	if name := got.differs(known); name != "" {
		return damaged(fmt.Sprintf("chain %s has %d rules instead of %d", name, got.rules[name], known[name].rules))
	}
	missing := map[string]int{}
	for _, rule := range entries(b.config, f, table) {
		chain := lastWord(rule)
		if missing[chain]++; missing[chain] > got.jumps[chain] {
			return damaged("packets do not enter " + chain)
		}
	}
	return nil
}

func lastWord(s string) string { return s[strings.LastIndexByte(s, ' ')+1:] }

// due says whether it is time for a full restore.
func (b *Backend) due() error {
	if p := b.options.SyncPeriod; p > 0 && time.Since(b.full.done) >= max(p, fullShare*b.full.took) {
		return fmt.Errorf("%w: the last full restore was %s ago", dataplane.ErrDue, time.Since(b.full.done).Round(time.Second))
	}
	return nil
}

// Full restores that only SyncPeriod asks for take at most 1/fullShare of the time.
const fullShare = 10

// fullRestore is when the last one ended, and how long it took.
type fullRestore struct {
	done time.Time
	took time.Duration
}
