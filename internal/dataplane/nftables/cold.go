// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"errors"
	"fmt"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"golang.org/x/sys/unix"
)

// errNotCold says that one of the tables already exists.
var errNotCold = errors.New("not a cold start")

// startCold programs the full content if none of the tables exists. Only the last of several transactions lets packets
// enter the tables. So the others can be small, which is faster (nfnl.Conn.CommitPieces):
//
//  1. the tables, with chains, sets and rules, but no rule of a base chain
//  2. the chains that only these Services need
//  3. ... the elements
//     last   the rules of the base chains
//
// An interrupted start leaves tables that no packet enters. The next start detects that rules are missing.
func (b *Dataplane) startCold(ctx context.Context, full *desired.Change, want *skeletons) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	generation, err := b.conn.Generation()
	if err != nil {
		return fmt.Errorf("reading the ruleset's generation: %w", err)
	}
	var tables, entries []*nfnl.Batch
	var written [len(schemas)]bool
	for f := range b.served {
		s := b.schemas[f]
		switch _, err := b.conn.Table(s.table); {
		case err == nil:
			return errNotCold
		case !errors.Is(err, unix.ENOENT):
			return fmt.Errorf("reading table %s %s: %w", s.table.Family, tableName, err)
		}
		tables, entries, written[f] = append(tables, &want[f].batch), append(entries, &want[f].entry), true
	}
	err = b.conn.Commit(generation, tables...)
	if errors.Is(err, nfnl.ErrGeneration) {
		return errNotCold // another process may have created one of the tables
	} else if err != nil {
		return err
	}
	before, err := b.seals(want)
	if err != nil {
		return err
	}
	switch now, err := b.conn.Generation(); {
	case err != nil:
		return fmt.Errorf("reading the ruleset's generation: %w", err)
	case now != generation:
		return errNotCold // another process may have changed the rules before they were read
	}
	b.plan(full)
	// Before the elements, through which the kernel goes for each new rule.
	if err := b.commitChains(); err != nil {
		return err
	}
	if err := b.conn.CommitPieces(ctx, &b.batch, func() { b.encode(full) }); err != nil {
		return err
	}
	now, err := generation, b.conn.Commit(generation, entries...)
	if errors.Is(err, nfnl.ErrGeneration) {
		// Another process has committed, most likely to other tables.
		now, err = b.conn.CommitRead(ctx, func() ([]*nfnl.Batch, error) {
			after, err := b.seals(want)
			if err == nil && after != before {
				err = errNotCold
			}
			return entries, err
		})
	}
	if err != nil {
		return err
	}
	err = b.detector.reset(b, now, want, written)
	if now != generation {
		b.detector.checkPools(len(b.pools)) // the next Checks find out whether elements were modified
	}
	return err
}

// seals returns the seals of the tables' current rules, which tables need not have yet.
func (b *Dataplane) seals(want *skeletons) (all [len(schemas)]string, err error) {
	for f := range b.served {
		t, err := b.conn.Contents(schemas[f].table)
		if err == nil && t == nil {
			err = errNotCold
		}
		if err != nil {
			return all, err
		}
		all[f] = seal(t, want[f].hash)
	}
	return all, nil
}
