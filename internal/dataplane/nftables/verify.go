// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
)

// Rules implements dataplane.Reader.
func (b *Dataplane) Rules(_ context.Context, full *desired.Change) (n int, faults []string, err error) {
	for f := range b.served {
		s := &schemasFor[full.Ranges && (b.unsealed == nil || b.schemas[f].ranged)][f] // the next Check completes it
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
		want := s.skeleton(b.config, full, b.unsealed == nil)
		if t.Dormant {
			fault("the table is dormant")
		}
		if b.unsealed == nil && !sealed(t, want.hash) {
			fault("chains or rules were modified, or are those of another configuration or version")
		}
		all, _ := want.batch.Written()
		for _, o := range t.OtherSets(all.Sets) {
			fault("%s", o)
		}
		for _, ft := range t.Flowtables {
			fault("flowtable %s does not belong there", ft.Name)
		}
		created, err := b.readCreated(s)
		if err != nil {
			return 0, nil, err
		}
		for _, b := range []*nfnl.Batch{&want.entry, created} {
			more, _ := b.Written()
			all.Chains, all.Rules = append(all.Chains, more.Chains...), append(all.Rules, more.Rules...)
		}
		for _, m := range t.Differing(&all, func(string) bool { return true }, s.isCreated) {
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
				if d.isOnDemand(selector) && !written[selector] {
					written[selector] = true
					s.writeOnDemand(&batch, d, selector)
				}
			})
		}
	}
	r.elements(s.remember, func(e nfnl.Element) { s.writeRemember(&batch, firstNumber(e.Key)) })
	return &batch, r.err
}

// isCreated reports whether a chain is not covered by the seal.
func (s *schema) isCreated(name string) bool {
	_, remembers := timeoutOf(name)
	return remembers || s.isOnDemandChain(name) || strings.HasPrefix(name, sealPrefix)
}
