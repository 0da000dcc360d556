// SPDX-License-Identifier: Apache-2.0

package fastpath

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"golang.org/x/sys/unix"
)

// guard detects modifications of the table by other programs, like the detector of the
// nftables dataplane: it reads the table when [nfnl.Conn.Generation] has changed. Rules and a
// flowtable that were replaced by equal ones are no damage, as FlushTable does that.
type guard struct {
	generation uint32 // 0 if unknown
	rules      uint64 // hash of what the rules do
	unlooked   int    // frontends that have not been looked up since somebody changed something
	next       int    // which of the controller's keys is next
}

// sampleSize is how many frontends are looked up in one Check.
const sampleSize = 32

// reset makes the rules that there are the norm.
func (g *guard) reset(c *Controller) (err error) {
	g.generation, g.unlooked = 0, 0
	g.rules, err = c.hashRules()
	if err != nil {
		return fmt.Errorf("fast path: reading rules: %w", err)
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
func (c *Controller) Check(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.valid {
		return fmt.Errorf("%w: the fast path's last change failed", dataplane.ErrDamaged)
	}
	if c.off() {
		return nil
	}
	generation, err := c.conn.Generation()
	if err != nil {
		return fmt.Errorf("fast path: reading the ruleset's generation: %w", err)
	}
	if generation != c.guard.generation {
		if err := c.checkTable(); err != nil {
			return err
		}
		c.guard.generation, c.guard.unlooked = generation, len(c.frontends.keys)
	}
	return c.checkSample()
}

func damaged(format string, args ...any) error {
	return fmt.Errorf("%w: table %s %s: %s", dataplane.ErrDamaged, table.Family, table.Name, fmt.Sprintf(format, args...))
}

func (c *Controller) checkTable() error {
	reading := func(err error) error {
		if errors.Is(err, unix.ENOENT) {
			return damaged("it does not exist")
		}
		return fmt.Errorf("fast path: reading table %s %s: %w", table.Family, table.Name, err)
	}
	info, err := c.conn.Table(table)
	if err != nil {
		return reading(err)
	}
	if info.Dormant {
		return damaged("it is dormant")
	}
	rules, err := c.hashRules()
	if err != nil {
		return reading(err)
	}
	if rules != c.guard.rules {
		return damaged("it has other rules")
	}
	ft, err := readFlowtable(c.conn)
	if err != nil {
		return reading(err)
	}
	if ft != nil {
		if want := c.flowtable(nil); ft.Flags != want.Flags || ft.Priority != want.Priority {
			return damaged("flowtable %s is another", ft.Name)
		}
		if err := c.checkDevices(newDeviceSet(ft.Devices)); err != nil {
			return err
		}
	}
	for d := range c.members {
		first, _ := interfaceRange(d)
		there, err := c.conn.Has(table, interfaces(false).Name, first)
		if err != nil {
			return reading(err)
		}
		if !there {
			return damaged("interface %s is missing", d.Name)
		}
		break // one is enough to notice an empty set
	}
	return nil
}

// checkDevices compares the flowtable's devices with those that were written. A difference
// is no damage where an interface has changed since: then the kernel has what is wanted
// now, and the next update makes it known here too.
func (c *Controller) checkDevices(has deviceSet) error {
	if c.unsynced || maps.Equal(has, c.devices) {
		return nil
	}
	now, err := c.wantedNow()
	if err != nil {
		return fmt.Errorf("fast path: %w", err)
	}
	for _, d := range append(has.without(c.devices), c.devices.without(has)...) {
		if has[d] != now[d] {
			return damaged("flowtable %s has other devices", flowtableName)
		}
	}
	return nil
}

// checkSample looks up the next few frontends.
func (c *Controller) checkSample() error {
	keys := c.frontends.keys
	for n := min(sampleSize, len(keys)); n > 0 && c.guard.unlooked > 0; n-- {
		c.guard.unlooked--
		c.guard.next = (c.guard.next + 1) % len(keys)
		k := keys[c.guard.next]
		c.key = frontendKey(c.key[:0], k)
		there, err := c.conn.Has(table, familyOf(k.Addr()).frontends.Name, c.key)
		if err != nil {
			return fmt.Errorf("fast path: reading table %s %s: %w", table.Family, table.Name, err)
		}
		if !there {
			return damaged("frontend %s of Service %s is missing", k, c.frontends.known[k].service)
		}
	}
	return nil
}
