// SPDX-License-Identifier: Apache-2.0

package fastpath

import (
	"errors"
	"fmt"
	"slices"

	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"golang.org/x/sys/unix"
)

// maxTries is how often something is tried when others change the ruleset, or
// interfaces go, at the same time.
const maxTries = 20

// build makes the table, with the frontends that are in the batch and without
// interfaces. Until these are in, nothing is offloaded.
func (c *Controller) build() error {
	c.hardware = c.hardware || c.wantsHardware()
	err := c.buildOn(false)
	var refused *nfnl.BatchError
	if errors.As(err, &refused) {
		// What is there cannot be built upon; take nothing of it.
		err = c.buildOn(true)
	}
	return c.explain(err)
}

func (c *Controller) buildOn(replace bool) error {
	for try := 1; ; try++ {
		generation, err := c.conn.Generation()
		if err != nil {
			return fmt.Errorf("reading the ruleset's generation: %w", err)
		}
		if try == maxTries {
			generation = 0
		}
		var head, tail nfnl.Batch
		kept, err := c.prepare(&head, replace)
		if err == nil {
			err = c.skeleton(&head)
		}
		w := ruleWriter{batch: &tail}
		w.rules(c.config.Threshold, c.config.Scope)
		if err = errors.Join(err, w.err); err == nil {
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

// skeleton writes all but rules, elements and interfaces.
func (c *Controller) skeleton(b *nfnl.Batch) error {
	b.AddTable(table, tableComment)
	for _, s := range c.sets() {
		b.AddSet(table, s)
	}
	b.AddCounter(table, counterOffloaded)
	b.AddFlowtable(table, c.flowtable(nil))
	for _, chain := range chains {
		b.AddChain(table, chain)
	}
	return nil
}

func (c *Controller) sets() []*nfnl.Set { return sets(c.patterns() != nil) }

// flowtable is our flowtable, with some devices.
func (c *Controller) flowtable(devices []nfnl.Device) *nfnl.Flowtable {
	f := &nfnl.Flowtable{Name: flowtableName, Priority: flowtablePriority, Flags: nfnl.FlowtableCounter, Devices: devices}
	if c.hardware {
		f.Flags |= nfnl.FlowtableHardware
	}
	return f
}

// prepare writes what it takes to have the table empty of rules and elements,
// except for what holds connections for a while. kept are the devices of a
// flowtable that stays, and so do its flows.
func (c *Controller) prepare(b *nfnl.Batch, replace bool) (kept deviceSet, err error) {
	switch _, err := c.conn.Table(table); {
	case errors.Is(err, unix.ENOENT):
		return deviceSet{}, nil
	case err != nil:
		return nil, fmt.Errorf("reading table %s %s: %w", table.Family, table.Name, err)
	}
	there, err := c.look()
	if err != nil {
		return nil, fmt.Errorf("reading table %s %s: %w", table.Family, table.Name, err)
	}
	want := c.flowtable(nil)
	if replace || !there.compatible || there.flowtable == nil ||
		there.flowtable.Flags != want.Flags || there.flowtable.Priority != want.Priority {
		b.DeleteTable(table)
		return deviceSet{}, nil
	}
	b.FlushTable(table)
	for _, s := range c.sets() {
		if there.sets[s.Name] && s.Flags&unix.NFT_SET_TIMEOUT == 0 {
			b.FlushSet(table, s)
		}
	}
	for _, name := range there.chains {
		if !slices.ContainsFunc(chains, func(c nfnl.Chain) bool { return c.Name == name }) {
			b.DeleteChain(table, name)
		}
	}
	return newDeviceSet(there.flowtable.Devices), nil
}

// found is what the kernel has under our table's name.
type found struct {
	sets       map[string]bool // of ours
	compatible bool            // all of these are of our types
	chains     []string
	flowtable  *nfnl.FlowtableInfo // nil when the kernel does not show it
}

func (c *Controller) look() (f found, err error) {
	err = errors.Join(
		nfnl.Undisturbed(func() error {
			f.sets, f.compatible = map[string]bool{}, true
			return c.conn.Sets(table, func(got nfnl.Set) {
				for _, want := range c.sets() {
					if want.Name == got.Name {
						f.sets[got.Name] = true
						f.compatible = f.compatible && want.KeyType == got.KeyType && want.KeyLen == got.KeyLen && want.Flags == got.Flags
					}
				}
			})
		}),
		nfnl.Undisturbed(func() error {
			f.chains = nil
			return c.conn.Chains(table, func(chain nfnl.ChainInfo) { f.chains = append(f.chains, chain.Name) })
		}),
	)
	if err == nil {
		f.flowtable, err = readFlowtable(c.conn)
	}
	return f, err
}

// readFlowtable reads our flowtable; nil when the kernel does not show it.
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
