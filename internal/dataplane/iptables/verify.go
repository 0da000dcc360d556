// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/slipstream-proxy/slipstream/internal/collect"
	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// Rules implements dataplane.Reader: the faults are what Reconcile would write. Two things are left
// to Read, as they depend on the changes before: the rules of a pool, and the sets other than that
// of health checks, which Read does not know.
func (b *Dataplane) Rules(ctx context.Context, full *desired.Change) (n int, faults []string, err error) {
	r := &Dataplane{config: b.config, variant: b.variant, sets: b.sets}
	r.tables = collect.From(b.tables, func(t *table) *table { return &table{family: t.family} })
	steps := r.takeAll(full)
	for i, t := range b.tables {
		r.tables[i].read, t.read = t.read, nil
	}
	for _, s := range steps {
		there, err := r.compare(ctx, s, full)
		if err != nil {
			return 0, nil, err
		}
		fault := func(format string, args ...any) {
			faults = append(faults, fmt.Sprintf("%s: ", s.table.family)+fmt.Sprintf(format, args...))
		}
		for _, w := range slices.Concat(s.sets.before, s.sets.after) {
			if w.kind == setHealthChecks {
				fault("%s %s %s", setName(s.table.family, w.kind), map[bool]string{true: "lacks", false: "has"}[w.add], w.member)
			}
		}
		for name, known := range s.table.known {
			if there[name].incompatible { // only the numbers of rules are known then
				if err := r.checkTable(s.table.family, name, s.scripts[name].now); errors.Is(err, dataplane.ErrDamaged) {
					fault("%v", err)
				} else if err != nil {
					return 0, nil, err
				}
				n += s.scripts[name].now.rules()
				continue
			}
			n += known.rules()
			for _, how := range s.scripts[name].differences(known) {
				fault("table %s: %s", name, how)
			}
		}
	}
	slices.Sort(faults)
	return n, faults, nil
}

// differences describes what a script that is not finished would change.
func (s *script) differences(known registry) (all []string) {
	for name, want := range s.now {
		switch got, exists := known[name]; {
		case !exists:
			all = append(all, fmt.Sprintf("chain %s is missing", name))
		case got.text != want.text && !slices.ContainsFunc(poolPrefixes[:], func(p string) bool { return strings.HasPrefix(name, p) }):
			all = append(all, fmt.Sprintf("chain %s was modified, or is that of another configuration or version: it has %d rules, and should have %d", name, got.rules, want.rules))
		}
	}
	for name := range known {
		if _, wanted := s.now[name]; !wanted {
			all = append(all, fmt.Sprintf("chain %s does not belong there", name))
		}
	}
	for line := range strings.Lines(s.others.String()) {
		if rule, missing := strings.CutPrefix(strings.TrimSpace(line), "-I "); missing {
			all = append(all, "there is no rule "+rule)
		} else {
			all = append(all, "a rule does not belong there: "+strings.TrimPrefix(rule, "-D "))
		}
	}
	return all
}
