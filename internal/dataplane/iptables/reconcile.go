// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// Reconcile implements dataplane.Dataplane. It writes all chains, deletes all others of
// ours, and writes what differs in the sets. Each table takes effect in one step.
func (b *Backend) Reconcile(ctx context.Context, full *desired.Change) (dataplane.Stats, error) {
	var stats dataplane.Stats
	start := time.Now()
	b.sequence.Begin()
	b.pools = make(dataplane.Pools[pool], 0, len(full.Pools))
	b.frontends = make(map[desired.FrontendKey]*frontend, len(full.Frontends))
	for _, t := range b.tables {
		t.forget(b.variant)
	}
	liberal := tcpIsLiberal(b.config.NetNS)
	steps := b.take(full)
	for _, s := range steps {
		if err := b.restore(ctx, s, full, liberal, &stats); err != nil {
			return stats, fmt.Errorf("restoring all of %s: %w", s.table.family, err)
		}
	}
	if !b.alone {
		if err := b.cleanOther(ctx); err != nil {
			return stats, err
		}
		b.alone = true
	}
	b.sequence.Done()
	b.full = fullRestore{time.Now(), time.Since(start)}
	b.count(steps)
	b.guard.known = false // other programs may have changed something between its steps
	return stats, nil
}

// restore programs all of one family.
func (b *Backend) restore(ctx context.Context, s *step, full *desired.Change, liberal bool, stats *dataplane.Stats) error {
	t := s.table
	if err := createSets(b.sets, t.family); err != nil {
		return err
	}
	var err error
	if s.sets, err = b.compareSets(t, &s.sets); err != nil {
		return err
	}
	s.scripts = newScripts(nil)
	(&ruleWriter{t.family, s.scripts[tableFilter]}).filter(b.config, liberal)
	nat := &ruleWriter{t.family, s.scripts[tableNAT]}
	nat.nat(b.config, full)
	t.cluster.head = nat.services(b.config, full)
	s.write()
	for _, name := range chainTables {
		if err := b.addEntries(ctx, s.scripts[name], t.family, name); err != nil {
			return err
		}
	}
	return b.commit(ctx, s, stats)
}

// addEntries adds to the script of a table what makes packets enter our chains, and the
// deletion of chains that are not written any more.
func (b *Backend) addEntries(ctx context.Context, out *script, f desired.Family, table string) error {
	text, err := b.variant.save(ctx, b.config.NetNS, f, table)
	if err != nil {
		return err
	}
	there := parseSave(text)
	for _, name := range there.chains {
		if _, written := out.now[name]; !written {
			out.drop(name)
		}
	}
	wanted := entries(b.config, f, table)
	for _, rule := range there.entries {
		if i := slices.Index(wanted, rule); i >= 0 {
			wanted = slices.Delete(wanted, i, i+1)
		} else {
			out.rule("-D " + rule) // for another configuration, or twice
		}
	}
	for _, rule := range slices.Backward(wanted) {
		chain, rest, _ := strings.Cut(rule, " ")
		out.rule("-I " + chain + " " + rest)
	}
	return nil
}

// saved is what iptables-save prints about our chains.
type saved struct {
	chains  []string
	entries []string    // rules of others' chains that lead to ours, without "-A"
	rules   []savedRule // in our chains
}

type savedRule struct{ chain, rule string }

// parseSave reads what iptables-save prints.
func parseSave(text []byte) (s saved) {
	for line := range bytes.Lines(text) {
		switch {
		case bytes.HasPrefix(line, []byte(":"+prefix)):
			name, _, _ := strings.Cut(string(line[1:]), " ")
			s.chains = append(s.chains, name)
		case bytes.HasPrefix(line, []byte("-A "+prefix)):
			name, rule, _ := strings.Cut(strings.TrimSpace(string(line[3:])), " ")
			s.rules = append(s.rules, savedRule{name, rule})
		case bytes.HasPrefix(line, []byte("-A ")):
			// A jump has no options after its target.
			rule := strings.TrimSpace(string(line[3:]))
			to := lastWord(rule)
			before := strings.TrimSuffix(rule, to)
			if strings.HasPrefix(to, prefix) && (strings.HasSuffix(before, " -j ") || strings.HasSuffix(before, " -g ")) {
				s.entries = append(s.entries, rule)
			}
		}
	}
	return s
}

// compareSets reads a family's sets, and returns the writes after which they have what the
// given writes would add to empty ones.
func (b *Backend) compareSets(t *table, all *setWrites) (out setWrites, err error) {
	got, err := readSets(b.sets, t.family)
	if err != nil {
		return out, err
	}
	var want [setKinds]map[member]bool
	for k := range setKinds {
		want[k] = map[member]bool{}
		t.members[k] = len(got[k])
	}
	for _, w := range slices.Concat(all.before, all.after) {
		want[w.kind][w.member] = true
	}
	// Sources are added before the frontends that they restrict, and deleted after them.
	order := []setKind{setSources}
	for k := range setKinds {
		if k != setSources {
			order = append(order, k)
		}
	}
	for _, k := range order {
		for m := range want[k] {
			if !got[k][m] {
				out.one(k, m, true, !got[setExternal][frontendMember(keyOf(m))])
			}
		}
	}
	slices.Reverse(order)
	for _, k := range order {
		for m := range got[k] {
			if !want[k][m] {
				out.one(k, m, false, false)
			}
		}
	}
	return out, nil
}
