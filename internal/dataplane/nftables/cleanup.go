// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"

	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
)

// Cleanup implements dataplane.Dataplane. It first removes the rules through which packets
// enter the tables, waits until no packet is inside, and then deletes the tables. Otherwise
// a packet inside a table would find its rules but empty sets, and be rejected even if
// another proxy, such as kube-proxy, serves the Service.
func (b *Backend) Cleanup(ctx context.Context) error {
	b.sequence.Begin()
	var closeEntries, remove nfnl.Batch
	for f := range schemas {
		table := schemas[f].table
		t, err := b.conn.Contents(table)
		switch {
		case nfnl.IsUnsupported(err), err == nil && t == nil:
			continue
		case err != nil:
			return err
		}
		for _, e := range entries {
			if hasChain(t, e.base) {
				closeEntries.FlushChain(table, e.base)
			}
		}
		remove.DeleteTable(table)
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
