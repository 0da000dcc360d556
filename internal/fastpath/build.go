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
	_, err := c.conn.CommitRead(ctx, func() ([]*nfnl.Batch, error) {
		existing, err := c.conn.Contents(table)
		if err != nil {
			return nil, err
		}
		var head, tail nfnl.Batch
		c.devices, c.unsynced = c.prepare(&head, existing, replace), true
		c.skeleton(&head)
		rules(&tail, &c.config)
		return []*nfnl.Batch{&head, &c.batch, &tail}, nil
	})
	return err
}

// skeleton writes the table without rules, elements and interfaces.
func (c *Controller) skeleton(b *nfnl.Batch) {
	b.AddTable(table, tableComment)
	for _, s := range c.sets() {
		b.AddSet(table, s)
	}
	if c.engine == nil {
		b.AddCounter(table, counterOffloaded)
		b.AddFlowtable(table, c.flowtable(nil))
	}
	for _, chain := range c.chains() {
		b.AddChain(table, chain)
	}
}

func (c *Controller) chains() []nfnl.Chain {
	if c.engine != nil {
		return chainsForEBPF
	}
	return chains
}

func (c *Controller) sets() []*nfnl.Set {
	all := sets(c.patterns() != nil)
	if c.engine != nil {
		all = append(all, requested)
	}
	return all
}

// flowtable returns the flowtable with the given devices.
func (c *Controller) flowtable(devices []nfnl.Device) *nfnl.Flowtable {
	f := &nfnl.Flowtable{Name: flowtableName, Priority: flowtablePriority, Flags: nfnl.FlowtableCounter, Devices: devices}
	if c.hardware {
		f.Flags |= nfnl.FlowtableHardware
	}
	return f
}

// isOurs reports whether a flowtable is the one that was programmed, whatever its devices.
func (c *Controller) isOurs(f *nfnl.Flowtable) bool {
	want := c.flowtable(nil)
	return f.Flags == want.Flags && f.Priority == want.Priority
}

// prepare removes the rules and elements of an existing table, except for the elements that
// hold connections on the slow path. If the table does not fit, or replace is set, it
// deletes the table. It returns the devices of a flowtable that is kept with its flows.
func (c *Controller) prepare(b *nfnl.Batch, existing *nfnl.Contents, replace bool) deviceSet {
	if existing == nil {
		return nil
	}
	has, compatible := existing.Compatible(c.sets())
	f := existing.Flowtable(flowtableName)
	ours := f != nil && c.isOurs(f)
	if c.engine != nil {
		ours = f == nil && isForEBPF(existing)
	}
	if replace || !compatible || !ours {
		b.DeleteTable(table)
		return nil
	}
	b.FlushTable(table)
	for _, s := range has {
		if s.Flags&unix.NFT_SET_TIMEOUT == 0 {
			b.FlushSet(table, s)
		}
	}
	for _, old := range existing.Chains {
		if !slices.ContainsFunc(chains, func(c nfnl.Chain) bool { return c.Name == old.Name }) {
			b.DeleteChain(table, old.Name)
		}
	}
	if f == nil {
		return nil
	}
	return newDeviceSet(f.Devices)
}

// isForEBPF reports whether a table is that of the engine EBPF.
func isForEBPF(t *nfnl.Contents) bool {
	return slices.ContainsFunc(t.Sets, func(s nfnl.Set) bool { return s.Name == requested.Name })
}

// abilities are optional features of the kernel.
type abilities struct {
	byName   bool // keeps a flowtable's devices by name, whether they exist or not (Linux 6.16)
	prefixes bool // accepts prefixes of names (Linux 6.17, and later versions of 6.16)
}

var probeTable = nfnl.Table{Family: nfnl.INET, Name: "slipstream-probe"}

// noDevice is a name that no interface has.
const noDevice = "slipstream-none"

// probe determines the kernel's abilities without committing anything. It returns
// ErrUnsupported if the kernel has no flowtables, or lacks an expression of the rules.
func probe(conn *nfnl.Conn) (able abilities, err error) {
	var b nfnl.Batch
	b.AddTable(probeTable, "")
	b.AddFlowtable(probeTable, &nfnl.Flowtable{Name: flowtableName, Flags: nfnl.FlowtableCounter})
	b.AddCounter(probeTable, counterOffloaded)
	b.AddChain(probeTable, chains[len(chains)-1])
	// Named counters are an option of the kernel's configuration until Linux 6.2.
	b.AddRule(probeTable, chainForward, "", packetsUpTo(1), nowhereBack(), offload())
	err = conn.DryRun(&b)
	var refused *nfnl.BatchError
	switch {
	case errors.As(err, &refused) && refused.Lacks():
		return able, fmt.Errorf("%w: %w", ErrUnsupported, err)
	case err != nil:
		return able, err
	}
	accepts := func(d nfnl.Device) bool { return canHave(conn, 0, d) == nil }
	able.byName = accepts(nfnl.Device{Name: noDevice})
	able.prefixes = able.byName && accepts(nfnl.Device{Name: noDevice, Prefix: true})
	return able, nil
}

// canHave returns an error unless a flowtable can have the flags, beside counting, and the
// device.
func canHave(conn *nfnl.Conn, flags uint32, d nfnl.Device) error {
	var b nfnl.Batch
	b.AddTable(probeTable, "")
	b.AddFlowtable(probeTable, &nfnl.Flowtable{Name: flowtableName, Flags: flags | nfnl.FlowtableCounter, Devices: []nfnl.Device{d}})
	return conn.DryRun(&b)
}
