// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/iptchains"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/xtables"
)

// guard notices when another program modifies our rules.
//
// The kernel has a stamp that is cheap to read and differs after each change. While the stamp
// is the one expected after our own restores, no other program has changed a table. Otherwise,
// and after a full restore, Check reads the tables: each chain of ours must have as many rules
// as were written, and the rules that lead packets to our chains must exist.
type guard struct {
	stamp stamp     // the expected one
	known bool      // all was well at that stamp
	next  time.Time // of the next look, so that looks take at most a twentieth of the time
}

// stamp is the generation of nf_tables, which is one for all tables, or the descriptions
// of tables in x_tables, by family and index in chainTables.
type stamp struct {
	generation uint32
	tables     [2][3]xtables.Info
}

// stamp reads the stamp of the tables. It reads none of a family that is not served: reading
// would create them.
func (b *Dataplane) stamp() (s stamp, err error) {
	return s, dataplane.Inside(b.config.NetNS, func() error {
		if b.variant == NFT {
			conn, err := nfnl.Dial(0)
			if err != nil {
				return err
			}
			defer conn.Close()
			s.generation, err = conn.Generation()
			return err
		}
		for _, t := range b.tables {
			conn, err := xtables.Dial([]*xtables.Family{xtables.IPv4, xtables.IPv6}[t.family])
			if err != nil {
				return err
			}
			defer conn.Close()
			for i, name := range chainTables {
				if s.tables[t.family][i], err = conn.Info(name); err != nil {
					return fmt.Errorf("reading table %s of %s: %w", name, t.family, err)
				}
			}
		}
		return nil
	})
}

// expect changes the stamp to the one after a restore of ours with some transactions, which
// adds entries to a table (or removes them). Of x_tables, only the number of entries is known.
func (s *stamp) expect(v Variant, f desired.Family, table, entries, commits int) {
	if v == Legacy {
		s.tables[f][table] = xtables.Info{Entries: s.tables[f][table].Entries + uint32(entries)}
		return
	}
	for range commits {
		s.generation = nfnl.NextGeneration(s.generation)
	}
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
func (b *Dataplane) Check(ctx context.Context) error {
	if err := b.sequence.Check(); err != nil {
		return err
	}
	if err := b.checkSets(); err != nil {
		return err
	}
	now, err := b.stamp()
	if err != nil {
		return err
	}
	start := time.Now()
	if b.guard.known && now == b.guard.stamp || start.Before(b.guard.next) {
		return b.due()
	}
	const lookShare = 20
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

// view calls do with a table, unless it does not exist.
func (b *Dataplane) view(f desired.Family, table string, do func(iptchains.View) error) error {
	t := iptchains.Table{Name: table, Legacy: b.variant == Legacy, IPv6: f == desired.IPv6}
	return dataplane.Inside(b.config.NetNS, func() error { return t.View(do) })
}

// checkTable looks for the known chains in a table.
func (b *Dataplane) checkTable(f desired.Family, table string, known registry) error {
	var t tally
	if err := b.view(f, table, func(v iptchains.View) error { return t.count(v, known) }); err != nil {
		return fmt.Errorf("reading table %s of %s: %w", table, f, err)
	}
	damaged := func(how string) error {
		return fmt.Errorf("%w: iptables-%s, %s, table %s: %s", dataplane.ErrDamaged, b.variant, f, table, how)
	}
	if name := t.differs(known); name != "" {
		return damaged(fmt.Sprintf("chain %s has %d rules instead of %d", name, t.rules[name], known[name].rules))
	}
	for _, rule := range entries(b.config, f, table) {
		chain := lastWord(rule)
		if t.jumps[chain]--; t.jumps[chain] < 0 {
			return damaged("packets do not enter " + chain)
		}
	}
	return nil
}

// tally is the rules of a table.
type tally struct {
	rules map[string]int // in each chain of ours
	jumps map[string]int // to each chain of ours, from chains of others
}

// differs is a chain that has not as many rules as is known, or "".
func (t *tally) differs(known registry) string {
	for name, record := range known {
		if t.rules[name] != int(record.rules) {
			return name
		}
	}
	return ""
}

// count reads chains, and the rules of others only, as iptables-nft takes seconds to list
// 100,000 rules. A chain is used by its own rules, and by those that lead to it. The latter are
// rules of ours, if these are as known, rules of built-in chains, and seldom rules of other
// chains, which are read if the sum is too high.
func (t *tally) count(v iptchains.View, known registry) error {
	t.rules, t.jumps = map[string]int{}, map[string]int{}
	references := make(map[chainHash]int, len(known)) // how many of our rules lead to each chain
	for _, record := range known {
		for _, to := range record.to {
			references[to]++
		}
	}
	chains, err := v.Chains()
	if err != nil {
		return err
	}
	var builtin, others []string
	for _, c := range chains {
		switch {
		case owner.Owns(c.Name):
			t.rules[c.Name] = c.Uses - references[hashChain([]byte(c.Name))]
		case iptchains.IsBuiltin(c.Name):
			builtin = append(builtin, c.Name)
		default:
			others = append(others, c.Name)
		}
	}
	subtract := func(chains []string) error {
		for _, chain := range chains {
			jumps, err := v.Jumps(chain)
			if err != nil {
				return err
			}
			for _, j := range jumps {
				t.jumps[j.To]++
				t.rules[j.To]--
			}
		}
		return nil
	}
	if err := subtract(builtin); err != nil || t.differs(known) == "" {
		return err
	}
	return subtract(others)
}

func lastWord(s string) string { return s[strings.LastIndexByte(s, ' ')+1:] }

// due says whether it is time for a full restore.
func (b *Dataplane) due() error {
	const fullShare = 10 // such restores take at most a tenth of the time
	if p := b.options.SyncPeriod; p > 0 && time.Since(b.full.done) >= max(p, fullShare*b.full.took) {
		return fmt.Errorf("%w: the last full restore was %s ago", dataplane.ErrDue, time.Since(b.full.done).Round(time.Second))
	}
	return nil
}

// fullRestore is when the last one ended, and how long it took.
type fullRestore struct {
	done time.Time
	took time.Duration
}
