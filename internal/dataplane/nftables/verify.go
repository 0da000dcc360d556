// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
)

// Rules implements dataplane.Reader. As Check does, it knows modified rules by the seal. The
// numbers of rules only tell which chain it is.
func (b *Dataplane) Rules(_ context.Context, full *desired.Change) (n int, faults []string, err error) {
	for f := range b.served {
		s := &schemas[f]
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
		n += len(t.Rules)
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
		chains := want.batch.RulesByChain()
		for chain, rules := range want.entry.RulesByChain() {
			chains[chain] += rules
		}
		created, err := b.readCreated(s)
		if err != nil {
			return 0, nil, err
		}
		for chain, rules := range created {
			chains[chain] = rules
		}
		for _, m := range miscounted(t, func(string) bool { return true }, chains) {
			fault("%s", m)
		}
	}
	return n, faults, nil
}

// readCreated returns the chains that maps in the kernel lead to, of those that were created when
// they were first needed, and the number of their rules.
func (b *Dataplane) readCreated(s *schema) (chains map[string]int, err error) {
	chains = map[string]int{}
	r := tableReader{schema: s, conn: b.conn, content: &dataplane.Content{}} // Read reports its faults
	for d := range s.eachScopeSets {
		for _, picks := range []*nfnl.Set{d.picks, d.stickyPicks} {
			r.elements(picks, func(e nfnl.Element) {
				if selector := int(int32(firstNumber(e.Key))) &^ stickySelector; isSpecialDraw(selector) {
					d.addSpecial(chains, selector)
				}
			})
		}
	}
	r.elements(s.remember, func(e nfnl.Element) { chains[rememberChain(firstNumber(e.Key))] = rememberRules })
	return chains, r.err
}

// addSpecial adds the chains for a value in the map pools, and the number of their rules.
func (d *scopeSets) addSpecial(chains map[string]int, selector int) {
	for _, c := range d.onDemandChains(selector) {
		chains[c.name] = c.rules
	}
}

// isCreated reports whether a chain is not covered by the seal.
func (s *schema) isCreated(name string) bool {
	return isRememberChain(name) || s.isSpecial(name) || strings.HasPrefix(name, sealPrefix)
}

// miscounted describes those of some chains that have not as many rules as they should. A chain
// that is not covered by the seal may be there without rules.
func miscounted(t *nfnl.Contents, of func(chain string) bool, want map[string]int) (all []string) {
	got := map[string]int{}
	for _, r := range t.Rules {
		got[r.Chain]++
	}
	s := &schemas[desired.IPv4] // the names are the same in both
	for _, c := range t.Chains {
		n, wanted := want[c.Name]
		switch {
		case !of(c.Name):
		case !wanted && !s.isCreated(c.Name), s.isCreated(c.Name) && len(c.Base) > 0:
			all = append(all, fmt.Sprintf("chain %s does not belong there", c.Name))
		case got[c.Name] != n:
			all = append(all, fmt.Sprintf("chain %s has %d rules instead of %d", c.Name, got[c.Name], n))
		}
	}
	for name := range want {
		if !hasChain(t, name) {
			all = append(all, fmt.Sprintf("chain %s is missing", name))
		}
	}
	slices.Sort(all)
	return all
}
