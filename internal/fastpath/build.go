// SPDX-License-Identifier: Apache-2.0

package fastpath

import (
	"context"
	"errors"
	"slices"

	"github.com/slipstream-proxy/slipstream/internal/collect"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"golang.org/x/sys/unix"
)

// build programs the table, with the frontends in the batch and without interfaces.
// Nothing is offloaded before these are added.
func (c *Controller) build(ctx context.Context) error {
	c.engine.begin()
	err := c.buildOn(ctx, false)
	if _, refused := errors.AsType[*nfnl.BatchError](err); refused {
		err = c.buildOn(ctx, true) // the kernel refused to modify the existing table
	}
	return c.explain(err)
}

// buildOn builds on the existing table, or replaces it.
func (c *Controller) buildOn(ctx context.Context, replace bool) error {
	_, err := c.conn.CommitRead(ctx, func() ([]*nfnl.Batch, error) {
		existing, err := c.conn.Contents(table)
		if err != nil {
			return nil, err
		}
		var head, tail nfnl.Batch
		c.devices, c.unsynced = c.prepare(&head, existing, replace), true
		c.skeleton(&head)
		c.rules(&tail)
		return []*nfnl.Batch{&head, &c.batch, &tail}, nil
	})
	return err
}

// skeleton writes the table without rules, elements and interfaces.
func (c *Controller) skeleton(b *nfnl.Batch) {
	b.AddTable(table, tableComment)
	for _, s := range sets() {
		b.AddSet(table, s)
	}
	c.engine.objects(b)
	for _, chain := range c.engine.chains() {
		b.AddChain(table, chain)
	}
}

// prepare removes the rules and elements of an existing table, except for the elements that
// hold connections on the slow path. If the table does not fit, or replace is set, it
// deletes the table. It returns the devices of a flowtable that is kept with its flows.
func (c *Controller) prepare(b *nfnl.Batch, existing *nfnl.Contents, replace bool) deviceSet {
	first := !c.built
	c.built = true
	if existing == nil {
		return nil
	}
	has, compatible := existing.Compatible(sets())
	if replace || !compatible || !c.engine.fits(existing) {
		b.DeleteTable(table)
		return nil
	}
	c.mustFlush = c.mustFlush || first
	b.FlushTable(table)
	for _, s := range has {
		if s.Flags&unix.NFT_SET_TIMEOUT == 0 || slices.Contains(passed[:], s) {
			b.FlushSet(table, s)
		}
	}
	for _, old := range existing.Chains {
		if !slices.ContainsFunc(chains, func(c nfnl.Chain) bool { return c.Name == old.Name }) {
			b.DeleteChain(table, old.Name)
		}
	}
	if f := existing.Flowtable(flowtableName); f != nil {
		return collect.Set(f.Devices)
	}
	return nil
}

// isForEBPF reports whether a table is that of the engine EBPF.
func isForEBPF(t *nfnl.Contents) bool {
	return slices.ContainsFunc(t.Chains, func(c nfnl.ChainInfo) bool { return c.Name == chainAsk })
}
