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

// startCold programs the full content if none of the tables exists. Only the last of
// several transactions lets packets enter the tables. So the others can be small, which
// is faster (nfnl.Conn.CommitPieces):
//
//  1. the tables, with chains, sets and rules, but no rule of a base chain
//  2. ... the elements
//     last   the rules of the base chains
//
// An interrupted start leaves tables that no packet enters. The next start detects that
// rules are missing.
func (b *Backend) startCold(ctx context.Context, full *desired.Change, skeletons *[len(schemas)]*skeleton) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	generation, err := b.conn.Generation()
	if err != nil {
		return fmt.Errorf("reading the ruleset's generation: %w", err)
	}
	var batches []*nfnl.Batch
	var written [len(schemas)]bool
	for f := range b.served {
		s := &schemas[f]
		switch _, err := b.conn.Table(s.table); {
		case err == nil:
			return errNotCold
		case !errors.Is(err, unix.ENOENT):
			return fmt.Errorf("reading table %s %s: %w", s.table.Family, tableName, err)
		}
		batches, written[f] = append(batches, &skeletons[f].batch), true
	}
	switch err := b.conn.Commit(generation, batches...); {
	case errors.Is(err, nfnl.ErrGeneration):
		return errNotCold // another process may have created one of the tables
	case err != nil:
		return err
	}
	rules, err := b.rulesOf(generation)
	if err != nil {
		return err
	}

	if err := b.conn.CommitPieces(ctx, &b.batch, func() { b.write(full) }); err != nil {
		return err
	}
	return b.enter(generation, skeletons, rules)
}

// fingerprints holds the fingerprint of each family's table.
type fingerprints [len(schemas)]fingerprint

// rulesOf reads the fingerprints of the tables' rules. It returns errNotCold unless the
// ruleset still has the generation, because another process may have changed them then.
func (b *Backend) rulesOf(generation uint32) (all fingerprints, err error) {
	for f := range b.served {
		o, err := b.outline(&schemas[f])
		if err != nil {
			return all, fmt.Errorf("reading table %s %s: %w", schemas[f].table.Family, tableName, err)
		}
		all[f] = o.fingerprint
	}
	switch now, err := b.conn.Generation(); {
	case err != nil:
		return all, fmt.Errorf("reading the ruleset's generation: %w", err)
	case now != generation:
		return all, errNotCold
	}
	return all, nil
}

// enter adds the rules that let packets enter the tables. The other rules must still have
// the given fingerprints. If another process has committed since the generation, most
// likely to other tables, the next Checks find out whether it modified elements.
func (b *Backend) enter(generation uint32, skeletons *[len(schemas)]*skeleton, rules fingerprints) error {
	var batches []*nfnl.Batch
	var written [len(schemas)]bool
	for f := range b.served {
		batches, written[f] = append(batches, &skeletons[f].entry), true
	}
	disturbed := false
	for range maxTries {
		err := b.conn.Commit(generation, batches...)
		if err == nil {
			err = b.detector.reset(b, generation, written)
			if disturbed {
				b.detector.unchecked = len(b.pools)
			}
		}
		if !errors.Is(err, nfnl.ErrGeneration) {
			return err
		}
		disturbed = true
		if generation, err = b.conn.Generation(); err != nil {
			return fmt.Errorf("reading the ruleset's generation: %w", err)
		}
		switch now, err := b.rulesOf(generation); {
		case errors.Is(err, errNotCold): // try again
		case err != nil:
			return err
		case now != rules:
			return errNotCold // another process has changed the rules
		}
	}
	return errNotCold
}
