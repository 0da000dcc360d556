// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"errors"
	"fmt"

	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"golang.org/x/sys/unix"
)

// Cleanup implements dataplane.Dataplane. Packets stop entering the tables before these go:
// one that was on its way through a table just then would find the rules, of which it
// sees all or none, but nothing in their sets, and be refused although somebody else, such
// as kube-proxy, has its Service.
func (b *Backend) Cleanup(ctx context.Context) error {
	b.sequence.Begin()
	var shut, remove nfnl.Batch
	for f := range schemas {
		t := schemas[f].table
		switch _, err := b.conn.Table(t); {
		case errors.Is(err, unix.ENOENT), nfnl.IsUnsupported(err):
			continue
		case err != nil:
			return fmt.Errorf("reading table %s %s: %w", t.Family, tableName, err)
		}
		entries, err := b.entries(t)
		if err != nil {
			return fmt.Errorf("reading the chains of table %s %s: %w", t.Family, tableName, err)
		}
		for _, chain := range entries {
			shut.FlushChain(t, chain)
		}
		remove.DeleteTable(t)
	}
	if !shut.Empty() {
		if err := b.conn.Commit(0, &shut); err != nil {
			return err
		}
		if err := nfnl.Settle(b.config.NetNS); err != nil {
			return err
		}
	}
	return b.conn.Commit(0, &remove)
}

// entries are those of the chains through which packets come in that a table has.
func (b *Backend) entries(t nfnl.Table) (all []string, err error) {
	err = nfnl.Undisturbed(func() error {
		all = nil
		return b.conn.Chains(t, func(c nfnl.ChainInfo) {
			if c.Name == chainPrerouting || c.Name == chainOutput {
				all = append(all, c.Name)
			}
		})
	})
	return all, err
}
