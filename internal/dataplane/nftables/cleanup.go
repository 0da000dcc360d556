// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"golang.org/x/sys/unix"
)

// Cleanup implements dataplane.Dataplane. It first removes the rules through which packets
// enter the tables, waits until no packet is inside, and then deletes the tables. Otherwise
// a packet inside a table would find its rules but empty sets, and be rejected even if
// another proxy, such as kube-proxy, serves the Service.
func (b *Backend) Cleanup(ctx context.Context) error {
	b.sequence.Begin()
	var closeEntries, remove nfnl.Batch
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
			closeEntries.FlushChain(t, chain)
		}
		remove.DeleteTable(t)
	}
	if !closeEntries.Empty() {
		if err := b.conn.Commit(0, &closeEntries); err != nil {
			return err
		}
		if err := nfnl.Settle(b.config.NetNS); err != nil {
			return err
		}
	}
	return b.conn.Commit(0, &remove)
}

// entries returns the chains of a table through which packets enter it.
func (b *Backend) entries(t nfnl.Table) (all []string, err error) {
	err = nfnl.Undisturbed(func() error {
		all = nil
		return b.conn.Chains(t, func(c nfnl.ChainInfo) {
			if slices.ContainsFunc(entries, func(e entry) bool { return e.base == c.Name }) {
				all = append(all, c.Name)
			}
		})
	})
	return all, err
}
