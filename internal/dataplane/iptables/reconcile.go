// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/iptchains"
)

// Reconcile implements dataplane.Dataplane. It reads all chains and sets, writes those that
// differ, and deletes all other chains of ours. Each table takes effect in one step.
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
	there := map[string]*saved{}
	for _, name := range chainTables {
		text, err := b.variant.save(ctx, b.config.NetNS, t.family, name)
		if err != nil {
			return err
		}
		there[name] = parseSave(text)
		t.known[name] = there[name].registry()
		if there[name].incompatible {
			if err := b.readUnprinted(t.family, name, there[name]); err != nil {
				return err
			}
		}
	}
	s.scripts = newScripts(t.known)
	for _, name := range chainTables {
		if there[name].incompatible {
			s.scripts[name].known = nil
		}
	}
	(&ruleWriter{t.family, s.scripts[tableFilter]}).filter(b.config, liberal)
	nat := &ruleWriter{t.family, s.scripts[tableNAT]}
	nat.nat(b.config, full)
	t.cluster.head = nat.services(b.config, full)
	s.write()
	for _, name := range chainTables {
		there[name].replace(s.scripts[name], entries(b.config, t.family, name))
	}
	return b.commit(ctx, s, stats)
}

// saved is our chains in the output of iptables-save.
type saved struct {
	chains  []string
	entries []string            // rules of others' chains that lead to ours, without "-A"
	rules   map[string][]string // of each of our chains

	incompatible bool // it has rules that iptables cannot print, so it prints none
}

// parseSave parses the output of iptables-save.
func parseSave(text []byte) *saved {
	s := &saved{rules: map[string][]string{}}
	for line := range bytes.Lines(text) {
		switch {
		case bytes.HasPrefix(line, []byte("# Table")) && bytes.Contains(line, []byte("incompatible")):
			s.incompatible = true
		case bytes.HasPrefix(line, []byte(":"+prefix)):
			name, _, _ := strings.Cut(string(line[1:]), " ")
			s.chains = append(s.chains, name)
		case bytes.HasPrefix(line, []byte("-A "+prefix)):
			name, rule, _ := strings.Cut(strings.TrimSpace(string(line[3:])), " ")
			s.rules[name] = append(s.rules[name], rule)
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

// readUnprinted reads the names of our chains, and which of our entries exist, from a table
// that iptables-save does not print.
func (b *Backend) readUnprinted(f desired.Family, table string, s *saved) error {
	got, err := b.guard.look(f, table, nil)
	if err != nil {
		return err
	}
	s.chains = slices.Collect(maps.Keys(got.rules))
	for _, rule := range entries(b.config, f, table) {
		if to := lastWord(rule); got.jumps[to] > 0 {
			got.jumps[to]--
			s.entries = append(s.entries, rule)
		}
	}
	return nil
}

// registry records the chains.
func (s *saved) registry() registry {
	r := make(registry, len(s.chains))
	for _, name := range s.chains {
		r[name] = recordOf([]byte(strings.Join(append(s.rules[name], ""), "\n")))
	}
	return r
}

// replace adds to the script of a table the entry rules, and the deletion of chains that are
// not written any more.
func (s *saved) replace(out *script, entries []string) {
	for _, name := range s.chains {
		if _, written := out.now[name]; !written {
			out.drop(name)
		}
	}
	for _, rule := range s.entries {
		from, _, _ := strings.Cut(rule, " ")
		_, stays := out.now[lastWord(rule)]
		if i := slices.Index(entries, rule); i >= 0 {
			entries = slices.Delete(entries, i, i+1)
		} else if iptchains.IsBuiltin(from) || !stays {
			// It is for another configuration, or twice; or it is another program's
			// and leads to a chain that can only be deleted without it.
			out.rule("-D " + rule)
		}
	}
	for _, rule := range slices.Backward(entries) {
		chain, rest, _ := strings.Cut(rule, " ")
		out.rule("-I " + chain + " " + rest)
	}
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
