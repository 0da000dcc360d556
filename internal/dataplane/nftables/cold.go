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

// errNotCold says that there is something of ours already.
var errNotCold = errors.New("not a cold start")

// startCold programs the full content where there is no table of ours. Packets
// enter the tables only with the last of several transactions, so that the others
// can be small, which is faster (nfnl.Conn.CommitPieces). A start that is broken off
// leaves tables that no packet enters, and the next finds that rules are missing.
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
		return errNotCold // perhaps: somebody is at work, and the other way copes with that
	case err != nil:
		return err
	}
	generation = nfnl.NextGeneration(generation)
	rules, err := b.rulesOf(generation)
	if err != nil {
		return err
	}

	var timeouts error
	transactions, err := b.conn.CommitPieces(ctx, &b.batch, func() {
		timeouts = b.newTimeouts(&b.batch, full)
		b.write(full)
	})
	if err = errors.Join(timeouts, err); err != nil {
		return err
	}
	for range transactions {
		generation = nfnl.NextGeneration(generation)
	}
	return b.enter(generation, skeletons, rules)
}

// fingerprints are those of the tables of all families.
type fingerprints [len(schemas)]fingerprint

// rulesOf reads what the tables' rules are, as long as the ruleset is of a
// generation, and so nobody else can have changed them.
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

// enter makes packets enter the tables, whose rules must still be those that were
// read before. Should somebody else have committed since the generation, most
// likely to other tables, the next Checks look whether it was to ours.
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
			err = b.guard.reset(b, generation, written)
			if disturbed {
				b.guard.unlooked = len(b.pools)
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
		case errors.Is(err, errNotCold): // and once more
		case err != nil:
			return err
		case now != rules:
			return errNotCold // somebody has changed our rules
		}
	}
	return errNotCold
}
