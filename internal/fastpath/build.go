// SPDX-License-Identifier: Apache-2.0

package fastpath

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"golang.org/x/sys/unix"
)

// maxTries is how often a change is tried while other programs change the ruleset or
// interfaces disappear.
const maxTries = 20

// build programs the table, with the frontends in the batch and without interfaces.
// Nothing is offloaded before these are added.
func (c *Controller) build(ctx context.Context) error {
	c.hardware = c.hardware || c.wantsHardware()
	err := c.buildOn(ctx, false)
	var refused *nfnl.BatchError
	if errors.As(err, &refused) {
		err = c.buildOn(ctx, true) // the kernel refused to modify the existing table
	}
	return c.explain(err)
}

// buildOn builds on the existing table, or replaces it.
func (c *Controller) buildOn(ctx context.Context, replace bool) error {
	for try := 1; ; try++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		generation, err := c.conn.Generation()
		if err != nil {
			return fmt.Errorf("reading the ruleset's generation: %w", err)
		}
		if try == maxTries {
			generation = 0
		}
		var head, tail nfnl.Batch
		kept, err := c.prepare(&head, replace)
		c.skeleton(&head)
		rules(&tail, c.config.Threshold, c.config.Scope)
		if err == nil {
			err = c.conn.Commit(generation, &head, &c.batch, &tail)
		}
		switch {
		case err == nil:
			c.members, c.devices = deviceSet{}, kept
			return nil
		case try == maxTries, !errors.Is(err, nfnl.ErrGeneration) && !errors.Is(err, nfnl.ErrInterrupted):
			return err
		}
	}
}

// skeleton writes the table without rules, elements and interfaces.
func (c *Controller) skeleton(b *nfnl.Batch) {
	b.AddTable(table, tableComment)
	for _, s := range c.sets() {
		b.AddSet(table, s)
	}
	b.AddCounter(table, counterOffloaded)
	b.AddFlowtable(table, c.flowtable(nil))
	for _, chain := range chains {
		b.AddChain(table, chain)
	}
}

func (c *Controller) sets() []*nfnl.Set { return sets(c.patterns() != nil) }

// flowtable returns the flowtable with the given devices.
func (c *Controller) flowtable(devices []nfnl.Device) *nfnl.Flowtable {
	f := &nfnl.Flowtable{Name: flowtableName, Priority: flowtablePriority, Flags: nfnl.FlowtableCounter, Devices: devices}
	if c.hardware {
		f.Flags |= nfnl.FlowtableHardware
	}
	return f
}

// prepare removes the rules and elements of an existing table, except for the elements that
// hold connections on the slow path. If the table does not fit, or replace is set, it
// deletes the table. It returns the devices of a flowtable that is kept with its flows.
func (c *Controller) prepare(b *nfnl.Batch, replace bool) (kept deviceSet, err error) {
	existing, err := c.readExisting()
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", tableText, err)
	}
	want := c.flowtable(nil)
	switch f := existing.flowtable; {
	case !existing.table:
		return deviceSet{}, nil
	case replace || !existing.compatible || f == nil || f.Flags != want.Flags || f.Priority != want.Priority:
		b.DeleteTable(table)
		return deviceSet{}, nil
	}
	b.FlushTable(table)
	for _, s := range c.sets() {
		if existing.sets[s.Name] && s.Flags&unix.NFT_SET_TIMEOUT == 0 {
			b.FlushSet(table, s)
		}
	}
	for _, name := range existing.chains {
		if !slices.ContainsFunc(chains, func(c nfnl.Chain) bool { return c.Name == name }) {
			b.DeleteChain(table, name)
		}
	}
	return newDeviceSet(existing.flowtable.Devices), nil
}

// existing is the table in the kernel.
type existing struct {
	table      bool            // it exists
	sets       map[string]bool // names of sets that the Controller uses
	compatible bool            // these sets have the right types
	chains     []string
	flowtable  *nfnl.FlowtableInfo // nil if it does not exist or the kernel does not return it
}

func (c *Controller) readExisting() (e existing, err error) {
	switch _, err := c.conn.Table(table); {
	case errors.Is(err, unix.ENOENT):
		return e, nil
	case err != nil:
		return e, err
	}
	e.table = true
	err = errors.Join(
		nfnl.Undisturbed(func() error {
			e.sets, e.compatible = map[string]bool{}, true
			return c.conn.Sets(table, func(got nfnl.Set) {
				for _, want := range c.sets() {
					if want.Name == got.Name {
						e.sets[got.Name] = true
						e.compatible = e.compatible && want.KeyType == got.KeyType && want.KeyLen == got.KeyLen && want.Flags == got.Flags
					}
				}
			})
		}),
		nfnl.Undisturbed(func() error {
			e.chains = nil
			return c.conn.Chains(table, func(chain nfnl.ChainInfo) { e.chains = append(e.chains, chain.Name) })
		}),
	)
	if err == nil {
		e.flowtable, err = readFlowtable(c.conn)
	}
	return e, err
}

// readFlowtable returns the flowtable, or nil if it does not exist or the kernel does not
// return it (see [nfnl.Conn.Flowtables]).
func readFlowtable(conn *nfnl.Conn) (f *nfnl.FlowtableInfo, err error) {
	err = nfnl.Undisturbed(func() error {
		f = nil
		return conn.Flowtables(table, func(got nfnl.FlowtableInfo) {
			if got.Name == flowtableName {
				f = &got
			}
		})
	})
	return f, err
}
