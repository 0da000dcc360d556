// SPDX-License-Identifier: Apache-2.0

package fastpath

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
)

// guard detects modifications of the table by other programs, like the detector of the
// nftables dataplane: it reads the table when [nfnl.Conn.Generation] has changed. Rules and a
// flowtable that were replaced by equal ones are not damage, as FlushTable does that.
type guard struct {
	generation uint32                // 0 if unknown
	rules      uint64                // hash of the rules
	unchecked  []desired.FrontendKey // since another program has committed
}

// expect records the kernel's rules.
func (g *guard) expect(c *Controller) error {
	t, err := c.conn.Contents(table)
	if t != nil {
		g.rules = t.Fingerprint(nil)
	}
	return err
}

// Check implements dataplane.Dataplane.
func (c *Controller) Check(context.Context) error {
	if c.Off() {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.sequence.Check()
	if err == nil {
		err = c.checkGeneration()
	}
	if err == nil {
		err = c.checkSample()
	}
	if err == nil {
		err = c.engine.check()
	}
	if err != nil {
		return fmt.Errorf("fast path: %w", err)
	}
	return nil
}

// Rests reports whether Check would do nothing until another program commits to nf_tables.
func (c *Controller) Rests() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.Off() || c.config.Engine != Flowtable || len(c.guard.unchecked) > 0 {
		return c.Off()
	}
	generation, err := c.conn.Generation()
	return err == nil && generation == c.guard.generation
}

// checkGeneration checks the table if another program has committed.
func (c *Controller) checkGeneration() error {
	generation, err := c.conn.Generation()
	if err != nil || generation == c.guard.generation {
		return err
	}
	if err := c.checkTable(); err != nil {
		return err
	}
	c.guard.generation, c.guard.unchecked = generation, slices.Collect(maps.Keys(c.frontends))
	return nil
}

func damaged(format string, args ...any) error {
	return fmt.Errorf("%w: %s: %s", dataplane.ErrDamaged, tableText, fmt.Sprintf(format, args...))
}

// checkTable checks everything except frontends.
func (c *Controller) checkTable() error {
	t, err := c.conn.Contents(table)
	switch {
	case err != nil:
		return err
	case t == nil:
		return damaged("it does not exist")
	case t.Dormant:
		return damaged("it is dormant")
	case t.Fingerprint(nil) != c.guard.rules:
		return damaged("rules were modified")
	}
	for a := range c.pods {
		if err := c.has(familyOf(a).pods, a.AsSlice(), "the address %s of a pod", a); err != nil {
			return err
		}
	}
	for a := range c.addresses {
		if err := c.has(familyOf(a).nodeAddresses, a.AsSlice(), "node address %s", a); err != nil {
			return err
		}
	}
	if err := c.engine.checkTable(t); err != nil || c.unsynced {
		return err
	}
	for d := range c.devices {
		return c.has(interfaces, interfaceKey(d.Name), "interface %s", d.Name) // one is enough to detect an empty set
	}
	return nil
}

// has returns an error unless a set has an element, which stands for what is described.
func (c *Controller) has(set *nfnl.Set, key []byte, what string, args ...any) error {
	exists, err := c.conn.Has(table, set.Name, key)
	if err == nil && !exists {
		err = damaged(what+" is missing", args...)
	}
	return err
}

// checkSample looks up the next few frontends, in random order.
func (c *Controller) checkSample() error {
	g := &c.guard
	const sampleSize = 32 // frontends that are looked up in one Check
	n := min(sampleSize, len(g.unchecked))
	for _, k := range g.unchecked[:n] {
		service, exists := c.frontends[k]
		if !exists {
			continue // removed meanwhile
		}
		c.key = frontendKey(c.key[:0], k)
		if err := c.has(setOf(k), c.key, "frontend %s of Service %s", k, service); err != nil {
			return err
		}
	}
	g.unchecked = g.unchecked[n:]
	return nil
}
