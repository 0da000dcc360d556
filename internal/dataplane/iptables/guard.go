// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// guard notices when somebody else changes our rules.
//
// There is something that the kernel tells cheaply and that differs after a change:
// the generation of nf_tables, or the number and the size of a table's rules in x_tables
// and where those of each hook are. As long as it is what our own changes make of what it
// was when all was well, all is. When it is not, somebody has changed something, mostly
// rules of their own; then, and after a full restore, a look at the tables tells whether
// there are as many rules in each chain of ours as should be, and packets come there.
type guard struct {
	watch

	stamp stamp
	known bool      // all is well as long as the stamp is the same
	grown growth    // by changes since
	next  time.Time // when the next look may be, so that looking takes little of the time
}

// lookShare is which share of the time at the most is spent with looking.
const lookShare = 20

// stamp is what differs after a change. It is comparable.
type stamp struct{ values [len(lookedAt)]tableStamp }

// tableStamp is of one table, in x_tables; nf_tables has one generation for all.
type tableStamp struct {
	generation            uint32
	rules, size           uint32
	hookEntry, underflows [5]uint32
}

// lookedAt are the tables that rules of ours are in.
var lookedAt = [...]struct {
	family desired.Family
	table  string
}{{desired.IPv4, tableNAT}, {desired.IPv4, tableFilter}, {desired.IPv6, tableNAT}, {desired.IPv6, tableFilter}}

// watch is how a variant is looked at.
type watch interface {
	// stamp is what differs after a change.
	stamp() (stamp, error)
	// look counts the rules of a table, which should be those that are known.
	look(f desired.Family, table string, known registry) (*tally, error)
	// follows says whether the one stamp can be what our restores have made
	// of the other.
	follows(before, after stamp, by growth) bool
	close() error
}

// tally is what there is in a table.
type tally struct {
	rules   map[string]int32 // in each chain of ours that has some
	entries map[string]int   // how often chains of others lead to one of ours
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
		g.watch, err = openGeneration(netns)
	} else {
		g.watch, err = openTableInfo(netns)
	}
	return g, err
}

// committed takes what there is for the norm, if it is what our own changes have made.
func (g *guard) committed() error {
	now, err := g.watch.stamp()
	g.known = err == nil && g.known && g.watch.follows(g.stamp, now, g.grown)
	g.stamp, g.grown = now, growth{}
	return err
}

// lookSoon has Check look as soon as it may.
func (g *guard) lookSoon() { g.known = false }

// Check implements dataplane.Dataplane. It finds chains and rules that have gone, and
// sets that have lost elements.
func (b *Backend) Check() error {
	if !b.valid {
		return fmt.Errorf("%w: the last change failed", dataplane.ErrDamaged)
	}
	if err := b.checkSets(); err != nil {
		return err
	}
	now, err := b.guard.watch.stamp()
	if err != nil {
		return err
	}
	start := time.Now()
	if b.guard.known && now == b.guard.stamp || start.Before(b.guard.next) {
		return b.due()
	}
	defer func() { b.guard.next = time.Now().Add(lookShare * time.Since(start)) }()
	for _, t := range b.tables {
		if err := errors.Join(b.checkTable(t.family, tableNAT, t.known), b.checkTable(t.family, tableFilter, t.filter)); err != nil {
			return err
		}
	}
	b.guard.stamp, b.guard.known, b.guard.grown = now, true, growth{}
	return b.due()
}

// due says whether it is time for a full restore.
func (b *Backend) due() error {
	if p := b.options.SyncPeriod; p > 0 && time.Since(b.full.done) >= max(p, fullShare*b.full.took) {
		return fmt.Errorf("%w: the last full restore was %s ago", dataplane.ErrDue, time.Since(b.full.done).Round(time.Second))
	}
	return nil
}

// fullShare is which share of the time at the most is spent with full restores that
// nothing but the time asks for.
const fullShare = 10

// fullRestore is when the last one ended, and how long it took.
type fullRestore struct {
	done time.Time
	took time.Duration
}

func (b *Backend) checkTable(f desired.Family, table string, known registry) error {
	got, err := b.guard.look(f, table, known)
	if err != nil {
		return fmt.Errorf("reading table %s of %s: %w", table, f, err)
	}
	damaged := func(what string) error {
		return fmt.Errorf("%w: iptables-%s, %s, table %s: %s", dataplane.ErrDamaged, b.variant, f, table, what)
	}
	if name := got.differs(known); name != "" {
		return damaged(fmt.Sprintf("chain %s has %d rules instead of %d", name, got.rules[name], known[name].rules))
	}
	for _, name := range entryChains(entries(b.config, f, table)) {
		if got.entries[name.chain] < name.times {
			return damaged("packets do not enter " + name.chain)
		}
	}
	return nil
}

type entryChain struct {
	chain string
	times int
}

// entryChains are the chains that rules lead to, and how often.
func entryChains(rules []string) (all []entryChain) {
	for _, rule := range rules {
		chain := lastWord(rule)
		if i := slices.IndexFunc(all, func(e entryChain) bool { return e.chain == chain }); i >= 0 {
			all[i].times++
		} else {
			all = append(all, entryChain{chain, 1})
		}
	}
	return all
}

func lastWord(s string) string { return s[strings.LastIndexByte(s, ' ')+1:] }
