// SPDX-License-Identifier: Apache-2.0

package fastpath

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"golang.org/x/sys/unix"
)

// guard detects modifications of the table by other programs, like the detector of the
// nftables dataplane: it reads the table when [nfnl.Conn.Generation] has changed. Rules and a
// flowtable that were replaced by equal ones are no damage, as FlushTable does that.
type guard struct {
	generation uint32 // 0 if unknown
	rules      uint64 // hash of the rules
	suspect    bool   // another program has committed since unchecked was filled
	unchecked  []desired.FrontendKey
}

// sampleSize is how many frontends are looked up in one Check.
const sampleSize = 32

// reset records the kernel's rules as the expected ones.
func (g *guard) reset(c *Controller) (err error) {
	*g = guard{}
	if g.rules, err = c.hashRules(); err != nil {
		return fmt.Errorf("reading rules: %w", err)
	}
	return nil
}

func (c *Controller) hashRules() (uint64, error) {
	rules, err := readRules(c.conn)
	hash := fnv.New64a()
	for _, r := range rules {
		fmt.Fprintf(hash, "%s\n%d\n", r.Chain, len(r.Expressions))
		hash.Write(r.Expressions)
	}
	return hash.Sum64(), err
}

// Check implements dataplane.Dataplane.
func (c *Controller) Check(context.Context) error {
	if c.off() {
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
	if err != nil {
		return fmt.Errorf("fast path: %w", err)
	}
	return nil
}

// checkGeneration checks the table if another program has committed.
func (c *Controller) checkGeneration() error {
	generation, err := c.conn.Generation()
	if err != nil || generation == c.guard.generation {
		return err
	}
	switch err := c.checkTable(); {
	case errors.Is(err, unix.ENOENT):
		return damaged("it does not exist")
	case err != nil:
		return err
	}
	c.guard.generation, c.guard.suspect = generation, true
	return nil
}

func damaged(format string, args ...any) error {
	return fmt.Errorf("%w: %s: %s", dataplane.ErrDamaged, tableText, fmt.Sprintf(format, args...))
}

// checkTable checks everything except frontends.
func (c *Controller) checkTable() error {
	info, err := c.conn.Table(table)
	if err != nil {
		return err
	}
	rules, err := c.hashRules()
	switch {
	case err != nil:
		return err
	case info.Dormant:
		return damaged("it is dormant")
	case rules != c.guard.rules:
		return damaged("rules were modified")
	}
	if err := c.checkFlowtable(); err != nil {
		return err
	}
	for d := range c.members {
		first, _ := interfaceRange(d)
		if exists, err := c.conn.Has(table, interfaces(false).Name, first); err != nil {
			return err
		} else if !exists {
			return damaged("interface %s is missing", d.Name)
		}
		break // one is enough to detect an empty set
	}
	return nil
}

// checkFlowtable compares the flowtable with the one that was programmed. Devices may differ
// if interfaces have changed since: then the kernel has the devices that the next update of
// interfaces will program.
func (c *Controller) checkFlowtable() error {
	ft, err := readFlowtable(c.conn)
	if err != nil || ft == nil {
		return err
	}
	if want := c.flowtable(nil); ft.Flags != want.Flags || ft.Priority != want.Priority {
		return damaged("flowtable %s was modified", ft.Name)
	}
	has := newDeviceSet(ft.Devices)
	if c.unsynced || maps.Equal(has, c.devices) {
		return nil
	}
	now, err := c.wantedNow()
	if err != nil {
		return err
	}
	for _, d := range slices.Concat(has.without(c.devices), c.devices.without(has)) {
		if has[d] != now[d] {
			return damaged("flowtable %s has other devices", flowtableName)
		}
	}
	return nil
}

// checkSample looks up the next few frontends, after another program has committed.
func (c *Controller) checkSample() error {
	g := &c.guard
	if len(g.unchecked) == 0 && g.suspect {
		g.unchecked, g.suspect = slices.Collect(maps.Keys(c.frontends)), false
	}
	n := min(sampleSize, len(g.unchecked))
	for _, k := range g.unchecked[:n] {
		service, exists := c.frontends[k]
		if !exists {
			continue // removed meanwhile
		}
		c.key = frontendKey(c.key[:0], k)
		exists, err := c.conn.Has(table, familyOf(k.Addr()).frontends.Name, c.key)
		if err != nil {
			return err
		}
		if !exists {
			return damaged("frontend %s of Service %s is missing", k, service)
		}
	}
	g.unchecked = g.unchecked[n:]
	return nil
}
