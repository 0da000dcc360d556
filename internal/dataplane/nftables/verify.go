// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
)

// Rules implements dataplane.Reader.
func (b *Dataplane) Rules(_ context.Context, full *desired.Change) (n int, faults []string, err error) {
	for f := range b.served {
		s := &schemasFor(full.Ranges)[f]
		t, err := b.conn.Contents(s.table)
		switch {
		case nfnl.IsUnsupported(err), err == nil && t == nil:
			continue
		case errors.Is(err, nfnl.ErrInterrupted):
			return 0, nil, fmt.Errorf("%w: %w", dataplane.ErrInterrupted, err)
		case err != nil:
			return 0, nil, err
		}
		fault := func(format string, args ...any) {
			faults = append(faults, fmt.Sprintf("%s: ", s.table.Family)+fmt.Sprintf(format, args...))
		}
		rules, limited, err := b.limitFaults(f, full)
		if err != nil {
			return 0, nil, err
		}
		for _, l := range limited {
			fault("table %s: %s", limitSchemas[f].table.Name, l)
		}
		n += len(t.Rules) + rules
		want := s.skeleton(b.config, full)
		if t.Dormant {
			fault("the table is dormant")
		}
		if !sealed(t, want.hash) {
			fault("chains or rules were modified, or are those of another configuration or version")
		}
		if has, compatible := t.Compatible(s.sets()); !compatible || len(has) < len(s.sets()) {
			fault("sets are missing, or have other types")
		}
		for i := range t.Sets {
			if !s.owns(&t.Sets[i]) {
				fault("set %s does not belong there", t.Sets[i].Name)
			}
		}
		for _, ft := range t.Flowtables {
			fault("flowtable %s does not belong there", ft.Name)
		}
		all := want.batch.RulesByChain()
		for chain, rules := range want.entry.RulesByChain() {
			all[chain] = append(all[chain], rules...)
		}
		created, err := b.readCreated(s)
		if err != nil {
			return 0, nil, err
		}
		maps.Copy(all, created.RulesByChain())
		for _, m := range differing(t, func(string) bool { return true }, all) {
			fault("%s", m)
		}
	}
	return n, faults, nil
}

// readCreated writes the chains that maps in the kernel lead to, of those that were created when
// they were first needed.
func (b *Dataplane) readCreated(s *schema) (*nfnl.Batch, error) {
	var batch nfnl.Batch
	r := tableReader{schema: s, conn: b.conn, content: &dataplane.Content{}} // Read reports its faults
	for d := range s.eachScopeSets {
		written := map[int]bool{}
		for _, picks := range []*nfnl.Set{d.picks, d.stickyPicks} {
			r.elements(picks, func(e nfnl.Element) {
				selector := bare(int(int32(firstNumber(e.Key))))
				if isSpecialDraw(selector) && !written[selector] {
					written[selector] = true
					s.writeSpecial(&batch, d, selector)
				}
			})
		}
	}
	r.elements(s.remember, func(e nfnl.Element) { s.writeRemember(&batch, firstNumber(e.Key)) })
	return &batch, r.err
}

// isCreated reports whether a chain is not covered by the seal.
func (s *schema) isCreated(name string) bool {
	return strings.HasPrefix(name, limitPrefix) || isRememberChain(name) || s.isSpecial(name) || strings.HasPrefix(name, sealPrefix)
}

// differing describes those of some chains that have other rules than they should. A chain
// that is not covered by the seal may be there without rules.
func differing(t *nfnl.Contents, of func(chain string) bool, want map[string][]nfnl.RuleInfo) (all []string) {
	got := map[string][]nfnl.RuleInfo{}
	for _, r := range t.Rules {
		got[r.Chain] = append(got[r.Chain], r)
	}
	s := &rangedSchemas[desired.IPv4] // the names are the same in all
	for _, c := range t.Chains {
		rules, wanted := want[c.Name]
		switch has := got[c.Name]; {
		case !of(c.Name):
		case !wanted && !s.isCreated(c.Name), s.isCreated(c.Name) && len(c.Base) > 0:
			all = append(all, fmt.Sprintf("chain %s does not belong there", c.Name))
		case len(has) != len(rules):
			all = append(all, fmt.Sprintf("chain %s has %d rules instead of %d", c.Name, len(has), len(rules)))
		default:
			for i := range rules {
				if !has[i].Same(&rules[i]) {
					all = append(all, fmt.Sprintf("rule %d of chain %s is another one", i+1, c.Name))
				}
			}
		}
	}
	for name := range want {
		if !slices.ContainsFunc(t.Chains, func(c nfnl.ChainInfo) bool { return c.Name == name }) {
			all = append(all, fmt.Sprintf("chain %s is missing", name))
		}
	}
	slices.Sort(all)
	return all
}
