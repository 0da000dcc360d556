// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/iptchains"
	"github.com/slipstream-proxy/slipstream/internal/node/sysctl"
)

// Reconcile implements dataplane.Dataplane. It reads all chains and sets, writes those that
// differ, and deletes all other chains of ours. Each table takes effect in one step.
func (b *Dataplane) Reconcile(ctx context.Context, full *desired.Change) (dataplane.Stats, error) {
	var stats dataplane.Stats
	start := time.Now()
	b.sequence.Begin()
	steps := b.takeAll(full)
	for _, s := range steps {
		if err := b.restore(ctx, s, full, &stats); err != nil {
			return stats, b.explain(fmt.Errorf("restoring all of %s: %w", s.table.family, err), full)
		}
	}
	if !b.alone {
		if err := b.cleanOther(ctx); err != nil {
			return stats, err
		}
		for _, t := range b.tables {
			if err := b.sets.Destroy(ctx, formerSet(t.family)); err != nil {
				return stats, err
			}
		}
		b.alone = true
	}
	b.sequence.Done()
	b.full = fullRestore{time.Now(), time.Since(start)}
	b.count(steps)
	b.guard.known = false // other programs may have changed something between its steps
	return stats, nil
}

// takeAll forgets what was programmed, and returns a step for each family that writes all.
func (b *Dataplane) takeAll(full *desired.Change) []*step {
	b.pools = make(dataplane.Pools[pool], 0, len(full.Pools))
	b.frontends = make(map[desired.FrontendKey]*frontend, len(full.Frontends))
	for _, t := range b.tables {
		t.forget(b.variant)
	}
	return b.record(full)
}

// restore programs all of one family.
func (b *Dataplane) restore(ctx context.Context, s *step, full *desired.Change, stats *dataplane.Stats) error {
	for k := range setKinds {
		if err := b.sets.Create(setName(s.table.family, k), setTypes[k].typ, s.table.family == desired.IPv6); err != nil {
			return err
		}
	}
	there, err := b.compare(ctx, s, full)
	if err != nil {
		return err
	}
	if err := b.deleteUnread(ctx, s, there, false); err != nil {
		return err
	}
	if err := b.commit(ctx, s, stats); err != nil {
		return err
	}
	return b.deleteUnread(ctx, s, there, true)
}

// compare reads all of one family, and limits a step that writes all to what differs. It returns
// what is there, by table.
func (b *Dataplane) compare(ctx context.Context, s *step, full *desired.Change) (there map[string]*saved, err error) {
	t := s.table
	if s.sets, err = b.compareSets(t, &s.sets); err != nil {
		return nil, err
	}
	if there = t.read; there == nil {
		if there, err = b.readTables(ctx, t.family); err != nil {
			return nil, err
		}
	}
	for _, name := range chainTables {
		t.known[name] = there[name].registry()
		if there[name].incompatible {
			if err := b.readUnprinted(t.family, name, there[name]); err != nil {
				return nil, err
			}
		}
	}
	s.scripts = newScripts(t.known)
	for _, name := range chainTables {
		s.scripts[name].unreached = len(there[name].entries) == 0
		if there[name].incompatible {
			s.scripts[name].known = nil
		}
	}
	liberal := false
	_ = dataplane.Inside(b.config.NetNS, func() error { liberal = sysctl.TCPIsLiberal(); return nil })
	(&ruleWriter{t.family, s.scripts[tableFilter]}).filter(b.config, liberal)
	nat := &ruleWriter{t.family, s.scripts[tableNAT]}
	nat.nat(b.config, full)
	t.cluster.head = nat.services(b.config, full)
	s.write()
	for _, name := range chainTables {
		there[name].replace(s.scripts[name], entries(b.config, t.family, name))
	}
	return there, nil
}

// saved is our chains in the output of iptables-save.
type saved struct {
	chains  []string
	entries []string          // rules of others' chains that lead to ours, without "-A"
	rules   map[string][]byte // of each of our chains, each a line without "-A" and the name

	incompatible bool             // it has rules that iptables cannot print, so it prints none
	unread       []iptchains.Jump // to our chains from built-in ones, if incompatible
}

// parseSave parses the output of iptables-save.
func parseSave(text []byte) *saved {
	s := &saved{rules: map[string][]byte{}}
	for line := range bytes.Lines(text) {
		switch {
		case bytes.HasPrefix(line, []byte("# Table")) && bytes.Contains(line, []byte(" is incompatible")):
			s.incompatible = true // "contains incompatible base-chains" is followed by the table
		case bytes.HasPrefix(line, []byte(":"+prefix)):
			name, _, _ := strings.Cut(string(line[1:]), " ")
			s.chains = append(s.chains, name)
		case bytes.HasPrefix(line, []byte("-A "+prefix)):
			name, rule, _ := bytes.Cut(line[3:], []byte(" "))
			s.rules[string(name)] = append(s.rules[string(name)], rule...)
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

// readUnprinted reads the names of our chains, and the rules of built-in chains that lead to
// them, from a table that iptables-save does not print. What such a rule matches is unknown.
// So all entries are written again, and these are removed: after that, or before it if a
// chain that they lead to is to be deleted.
func (b *Dataplane) readUnprinted(f desired.Family, table string, s *saved) error {
	return b.view(f, table, func(v iptchains.View) error {
		chains, err := v.Chains()
		for _, c := range chains {
			if owner.Owns(c.Name) {
				s.chains = append(s.chains, c.Name)
			} else if iptchains.IsBuiltin(c.Name) {
				jumps, failed := v.Jumps(c.Name)
				s.unread = append(s.unread, slices.DeleteFunc(jumps, func(j iptchains.Jump) bool { return !owner.Owns(j.To) })...)
				err = errors.Join(err, failed)
			}
		}
		return err
	})
}

// deleteUnread deletes those of the rules that lead to a chain that stays, or to another one.
func (b *Dataplane) deleteUnread(ctx context.Context, s *step, there map[string]*saved, stays bool) error {
	for _, name := range chainTables {
		var rules []iptchains.Jump
		for _, j := range there[name].unread {
			if _, is := s.scripts[name].now[j.To]; is == stays {
				rules = append(rules, j)
			}
		}
		if len(rules) == 0 {
			continue
		}
		if err := b.view(s.table.family, name, func(v iptchains.View) error { return v.Remove(ctx, rules, nil) }); err != nil {
			return fmt.Errorf("deleting rules of table %s: %w", name, err)
		}
	}
	return nil
}

// registry records the chains.
func (s *saved) registry() registry {
	r := make(registry, len(s.chains))
	for _, name := range s.chains {
		r[name] = recordOf(s.rules[name])
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
