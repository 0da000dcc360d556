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
	"k8s.io/klog/v2"
)

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

// update programs a change of interfaces.
func (c *Controller) update(ctx context.Context, all []netif.Interface) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.take(all)
	if c.sequence.Check() == nil {
		c.sync(ctx)
	}
}

// take records the interfaces and chooses those for the flowtable.
func (c *Controller) take(all []netif.Interface) {
	former := c.links
	c.links, c.chosen = map[int]netif.Interface{}, map[int]string{}
	for _, i := range all {
		if old, had := former[i.Index]; had && old.Name != i.Name {
			c.renamed(old.Name, i.Name)
		}
		c.links[i.Index] = i
		chosen, err := c.config.Interfaces.Selects(&i)
		if chosen {
			c.chosen[i.Index] = i.Name
		}
		if c.said[badExpression] == "" { // it may fail for many interfaces
			c.logOnce(err, badExpression)
		}
	}
}

const badExpression = "Fast path: an interface does not take part, because the expression failed"

// renamed records an interface's new name. A kernel that does not keep devices by name
// keeps the interface in the flowtable.
func (c *Controller) renamed(from, to string) {
	if d := (nfnl.Device{Name: from}); !c.able.byName && c.devices[d] {
		delete(c.devices, d)
		c.devices[nfnl.Device{Name: to}] = true
	}
}

// patterns returns names and prefixes that the kernel matches itself, or nil if the kernel
// or the expression does not allow that.
func (c *Controller) patterns() []nfnl.Device {
	if !c.able.prefixes {
		return nil
	}
	return c.config.Interfaces.Patterns()
}

// wanted returns the devices that the flowtable should have.
func (c *Controller) wanted() deviceSet {
	if p := c.patterns(); p != nil {
		return newDeviceSet(p)
	}
	s := deviceSet{}
	for _, name := range c.chosen {
		s[nfnl.Device{Name: name}] = true
	}
	return s
}

// wantedNow returns what wanted will return after all changes of interfaces so far.
func (c *Controller) wantedNow() (deviceSet, error) {
	now := Controller{config: c.config, able: c.able, said: c.said}
	err := now.list()
	return now.wanted(), err
}

// wantsHardware reports whether to use hardware: it is configured, and the drivers of all
// interfaces support it.
func (c *Controller) wantsHardware() bool {
	wanted := c.wanted().list()
	if c.config.Hardware == Off || len(wanted) == 0 {
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
	err := c.trySync()
	for try := 1; err != nil && try < maxTries && ctx.Err() == nil; try++ {
		// An interface may have been deleted, or the table may have been modified.
		if err = c.reread(); err == nil {
			err = c.trySync()
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
	f, err := readFlowtable(c.conn)
	if err != nil {
		return fmt.Errorf("reading flowtable %s: %w", flowtableName, err)
	}
	// If f is nil, the kernel does not return so many devices, or the flowtable does not
	// exist. In the second case adding devices fails.
	if f != nil {
		c.devices = newDeviceSet(f.Devices)
	}
	return c.list()
}

// trySync commits the differences between the wanted devices and those of the flowtable
// (c.devices) and of the set of interfaces (c.members), in one transaction.
func (c *Controller) trySync() error {
	wanted := c.wanted()
	c.batch.Reset()
	if err := c.writeDevices(wanted); err != nil {
		return err
	}
	c.writeMembers(wanted)
	err := c.conn.Commit(0, &c.batch)
	if errors.Is(err, unix.EOPNOTSUPP) && c.hardware {
		// The driver of a new interface does not take flows.
		c.refusedHardware(err)
		if err := c.leaveHardware(); err != nil {
			return err
		}
		return c.trySync()
	}
	if err == nil {
		c.devices, c.members = wanted, maps.Clone(wanted)
	}
	return err
}

// writeDevices changes the flowtable's devices to the wanted ones. It replaces the flowtable
// if a device leaves that is up, because its flows would remain.
func (c *Controller) writeDevices(wanted deviceSet) error {
	add, del := wanted.without(c.devices), c.devices.without(wanted)
	exists, up := deviceSet{}, deviceSet{}
	for _, l := range c.links {
		d := nfnl.Device{Name: l.Name}
		exists[d], up[d] = true, l.Up
	}
	if !c.able.byName {
		// The kernel has already removed interfaces that do not exist any more.
		del = slices.DeleteFunc(del, func(d nfnl.Device) bool { return !exists[d] })
	}
	if slices.ContainsFunc(del, func(d nfnl.Device) bool { return up[d] }) {
		return replaceFlowtable(c.conn, &c.batch, c.flowtable(wanted.list()))
	}
	if len(del) > 0 {
		c.batch.DeleteDevices(table, c.flowtable(del))
	}
	if len(add) > 0 {
		c.batch.AddFlowtable(table, c.flowtable(add))
	}
	return nil
}

// writeMembers changes the set of interfaces to the wanted ones. Its elements are intervals
// if there can be prefixes.
func (c *Controller) writeMembers(wanted deviceSet) {
	set := interfaces(c.patterns() != nil)
	intervals := set.Flags&unix.NFT_SET_INTERVAL != 0
	for _, d := range c.members.without(wanted) {
		if first, last := interfaceRange(d); intervals {
			c.batch.DeleteInterval(table, set, first, last)
		} else {
			c.batch.DeleteElement(table, set, first)
		}
	}
	for _, d := range wanted.without(c.members) {
		if first, last := interfaceRange(d); intervals {
			c.batch.AddInterval(table, set, first, last)
		} else {
			c.batch.AddElement(table, set, first, nil, "")
		}
	}
}

// leaveHardware replaces the flowtable by one without the flag for hardware.
func (c *Controller) leaveHardware() error {
	c.hardware = false
	c.batch.Reset()
	if err := replaceFlowtable(c.conn, &c.batch, c.flowtable(c.devices.list())); err != nil {
		return err
	}
	return c.conn.Commit(0, &c.batch)
}

// logOnce logs an error unless it is nil or the last one that was logged with this message.
// It reports whether it did.
func (c *Controller) logOnce(err error, message string) (logged bool) {
	if err == nil || c.said[message] == err.Error() {
		return false
	}
	c.said[message] = err.Error()
	klog.ErrorS(err, message)
	return true
}
