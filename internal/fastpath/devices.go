// SPDX-License-Identifier: Apache-2.0

package fastpath

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"github.com/slipstream-proxy/slipstream/internal/node/netif"
	"golang.org/x/sys/unix"
)

// link is an interface.
type link struct {
	name       string
	up, chosen bool // chosen interfaces take part
	mtu        int
}

// deviceSet is a set of devices of a flowtable.
type deviceSet map[nfnl.Device]bool

func newDeviceSet(all []nfnl.Device) deviceSet { return unique(all) }

// list returns the devices in order.
func (s deviceSet) list() []nfnl.Device {
	return slices.SortedFunc(maps.Keys(s), func(a, b nfnl.Device) int { return strings.Compare(a.Name, b.Name) })
}

// without returns the devices that only s has, in order.
func (s deviceSet) without(other deviceSet) []nfnl.Device {
	return slices.DeleteFunc(s.list(), func(d nfnl.Device) bool { return other[d] })
}

// list lists the interfaces.
func (c *Controller) list() error {
	all, err := netif.Namespace(c.config.NetNS).List()
	if err == nil {
		c.take(all)
	}
	return err
}

// update programs a change of interfaces. The flows of a flowtable keep the MTU of their start if they are
// IPv6: after a change of MTU all connections are offloaded again.
func (c *Controller) update(ctx context.Context, all []netif.Interface) {
	if c.change(ctx, all) {
		c.refresh(ctx)
	}
}

// change reports whether flows have to end, as the MTU of an interface that takes part has changed.
func (c *Controller) change(ctx context.Context, all []netif.Interface) (mtu bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	former := c.links
	c.take(all)
	if c.sequence.Check() == nil {
		c.sync(ctx)
	}
	for index, l := range c.links {
		before, existed := former[index]
		mtu = mtu || existed && l.chosen && l.mtu != before.mtu
	}
	return mtu && c.engine == nil
}

// take records the interfaces. A kernel that does not keep devices by name keeps a renamed
// interface in the flowtable, but not in the set of interfaces.
func (c *Controller) take(all []netif.Interface) {
	former := c.links
	c.links = c.choose(all)
	for index, l := range c.links {
		d := nfnl.Device{Name: former[index].name}
		if d.Name != l.name && !c.able.byName && c.devices[d] {
			delete(c.devices, d)
			c.devices[nfnl.Device{Name: l.name}] = true
			c.unsynced = true
		}
	}
	// An interface of the same name may have taken the place of one that is deleted.
	for index, l := range former {
		d := nfnl.Device{Name: l.name}
		if _, exists := c.links[index]; !exists && !c.able.byName && c.devices[d] {
			delete(c.devices, d)
			c.unsynced = true
		}
	}
}

// choose returns the interfaces by index, with the choice of those that take part.
func (c *Controller) choose(all []netif.Interface) map[int]link {
	links := make(map[int]link, len(all))
	for _, i := range all {
		chosen, err := c.config.Interfaces.Selects(&i)
		chosen = chosen && (c.engine == nil || i.Ethernet)
		links[i.Index] = link{name: i.Name, up: i.Up, chosen: chosen, mtu: i.MTU}
		if c.said[badExpression] == "" { // it may fail for many interfaces
			c.logOnce(err, badExpression)
		}
	}
	return links
}

const badExpression = "Fast path: an interface does not take part, because the expression failed"

// patterns returns names and prefixes that the kernel matches itself, or nil if the kernel
// or the expression does not allow that.
func (c *Controller) patterns() []nfnl.Device {
	if !c.able.prefixes {
		return nil
	}
	return c.config.Interfaces.Patterns()
}

// wanted returns the devices that the flowtable should have.
func (c *Controller) wanted() deviceSet { return c.wantedOf(c.links) }

func (c *Controller) wantedOf(links map[int]link) deviceSet {
	if p := c.patterns(); p != nil {
		return newDeviceSet(p)
	}
	s := deviceSet{}
	for _, l := range links {
		if l.chosen {
			s[nfnl.Device{Name: l.name}] = true
		}
	}
	return s
}

// wantsHardware reports whether to use hardware: it is configured, and the drivers of all
// interfaces support it.
func (c *Controller) wantsHardware() bool {
	wanted := c.wanted().list()
	if c.config.Hardware == Off || c.engine != nil || len(wanted) == 0 {
		return false
	}
	for _, d := range wanted {
		err := canHave(c.conn, nfnl.FlowtableHardware, d)
		var refused *nfnl.BatchError
		if errors.As(err, &refused) {
			err = fmt.Errorf("interface %s: its driver does not take flows: %w", d.Name, refused.Errno)
		}
		if err != nil {
			c.refusedHardware(err)
			return false
		}
	}
	return true
}

func (c *Controller) refusedHardware(err error) {
	if c.config.Hardware == On && c.logOnce(err, "Fast path: no hardware offload, connections take the fast path in software") && c.config.NoHardware != nil {
		c.config.NoHardware(err)
	}
}

// sync programs which interfaces take part. After a failure, resync tries again.
func (c *Controller) sync(ctx context.Context) {
	const tries = 20
	err := c.trySync(false)
	for try := 1; err != nil && try < tries && ctx.Err() == nil; try++ {
		// An interface may have been deleted, or the table may have been modified.
		if err = c.reread(); err == nil {
			err = c.trySync(false)
		}
	}
	if c.unsynced = err != nil; c.unsynced {
		c.stats.Errors++
		c.logOnce(err, "Fast path: interfaces could not be changed, will try again")
	}
}

// resync repeats a sync that failed.
func (c *Controller) resync(ctx context.Context) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unsynced && c.sequence.Check() == nil {
		c.sync(ctx)
	}
}

// reread reads the flowtable's devices and the interfaces.
func (c *Controller) reread() error {
	c.unsynced = true
	t, err := c.conn.Contents(table)
	if err != nil {
		return err
	}
	// If there is no flowtable, the kernel does not return so many devices, or the
	// flowtable does not exist. In the second case adding devices fails.
	if f := t.Flowtable(flowtableName); f != nil {
		c.devices = newDeviceSet(f.Devices)
	}
	return c.list()
}

// trySync commits the differences between the wanted devices and those of the flowtable
// (c.devices), or a new flowtable, and the set of interfaces.
func (c *Controller) trySync(replace bool) error {
	wanted := c.wanted()
	if !c.unsynced && maps.Equal(wanted, c.devices) {
		return nil
	}
	c.batch.Reset()
	c.writeMembers(wanted)
	var err, refused error
	if c.engine != nil {
		refused = c.engine.SetInterfaces(c.chosen()) // it does not offload connections over those that it has refused
	} else {
		err = c.writeDevices(wanted, replace)
	}
	if err == nil {
		err = c.conn.Commit(0, &c.batch)
	}
	err = errors.Join(err, refused)
	if errors.Is(err, unix.EOPNOTSUPP) && c.hardware {
		// The driver of a new interface does not take flows.
		c.refusedHardware(err)
		c.hardware = false
		return c.trySync(true)
	}
	if err == nil {
		c.devices = wanted
	}
	return err
}

// chosen returns the indexes of the interfaces that take part.
func (c *Controller) chosen() map[int]bool {
	all := map[int]bool{}
	for index, l := range c.links {
		if l.chosen {
			all[index] = true
		}
	}
	return all
}

// writeDevices changes the flowtable's devices to the wanted ones. It also replaces the
// flowtable if a device leaves that is up, because its flows would remain.
func (c *Controller) writeDevices(wanted deviceSet, replace bool) error {
	add, del := wanted.without(c.devices), c.devices.without(wanted)
	exists, up := deviceSet{}, deviceSet{}
	for _, l := range c.links {
		d := nfnl.Device{Name: l.name}
		exists[d], up[d] = true, l.up
	}
	if !c.able.byName {
		// The kernel has already removed interfaces that do not exist any more.
		del = slices.DeleteFunc(del, func(d nfnl.Device) bool { return !exists[d] })
	}
	if replace || slices.ContainsFunc(del, func(d nfnl.Device) bool { return up[d] }) {
		t, err := c.conn.Contents(table)
		if err == nil && t == nil {
			err = unix.ENOENT
		}
		if err != nil {
			return err
		}
		replaceFlowtable(&c.batch, t.Rules, c.flowtable(wanted.list()))
		return nil
	}
	if len(del) > 0 {
		c.batch.DeleteDevices(table, c.flowtable(del))
	}
	if len(add) > 0 {
		c.batch.AddFlowtable(table, c.flowtable(add))
	}
	return nil
}

// writeMembers writes the set of interfaces. Its elements are intervals if there can be
// prefixes.
func (c *Controller) writeMembers(wanted deviceSet) {
	set := interfaces(c.patterns() != nil)
	c.batch.FlushSet(table, set)
	for d := range wanted {
		if first, last := interfaceRange(d); set.Flags&unix.NFT_SET_INTERVAL != 0 {
			c.batch.AddInterval(table, set, first, last)
		} else {
			c.batch.AddElement(table, set, first, nil, "")
		}
	}
}

// logOnce logs an error unless it is nil or the last one that was logged with this message.
// It reports whether it did.
func (c *Controller) logOnce(err error, message string) (logged bool) {
	if err == nil || c.said[message] == err.Error() {
		return false
	}
	c.said[message] = err.Error()
	c.log.Error(err, message)
	return true
}
