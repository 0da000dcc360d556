// SPDX-License-Identifier: Apache-2.0

package fastpath

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/slipstream-proxy/slipstream/internal/collect"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"github.com/slipstream-proxy/slipstream/internal/node/netif"
)

// link is an interface.
type link struct {
	name       string
	up, chosen bool   // chosen interfaces take part
	barred     string // why it does not, although it is selected
	mtu        int
}

// deviceSet is a set of devices of a flowtable.
type deviceSet map[nfnl.Device]bool

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
	if err := c.engine.survey(); err != nil {
		return err
	}
	all, err := netif.Namespace(c.config.NetNS).List()
	if err == nil {
		c.setInterfaces(all)
	}
	return err
}

// change programs a change of interfaces, and reports whether flows have to end, as the MTU of an interface
// that takes part has changed.
func (c *Controller) change(ctx context.Context, all []netif.Interface) (mtu bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.engine.survey(); err != nil {
		c.logOnce(err, noSurvey) // resync tries again
		return false
	}
	former := c.links
	c.setInterfaces(all)
	c.follow(ctx)
	for index, l := range c.links {
		before, existed := former[index]
		mtu = mtu || existed && l.chosen && l.mtu != before.mtu
	}
	return mtu && c.engine.keepsMTU()
}

// setInterfaces records the interfaces. A kernel that does not keep devices by name keeps a renamed
// interface in the flowtable, but not in the set of interfaces.
func (c *Controller) setInterfaces(all []netif.Interface) {
	former := c.links
	c.links = c.choose(all)
	for index, l := range c.links {
		if l.barred != "" && l.barred != former[index].barred {
			c.log.Info("Fast path: an interface does not take part, as packets would bypass what another program has there", "interface", l.name, "has", l.barred)
		}
		d := nfnl.Device{Name: former[index].name}
		if d.Name != l.name && !c.byName && c.devices[d] {
			delete(c.devices, d)
			c.devices[nfnl.Device{Name: l.name}] = true
			c.unsynced = true
		}
	}
	// An interface of the same name may have taken the place of one that is deleted.
	for index, l := range former {
		d := nfnl.Device{Name: l.name}
		if _, exists := c.links[index]; !exists && !c.byName && c.devices[d] {
			delete(c.devices, d)
			c.unsynced = true
		}
	}
	c.logOnce(c.switchGRO(all, func(index int) bool { return c.config.GRO && c.links[index].chosen }), "Fast path: GRO could not be switched")
}

// choose returns the interfaces by index, with the choice of those that take part.
func (c *Controller) choose(all []netif.Interface) map[int]link {
	links := make(map[int]link, len(all))
	for _, i := range all {
		chosen, err := c.config.Interfaces.Selects(&i)
		can, barred := c.engine.takes(&i)
		if !chosen {
			barred = ""
		}
		links[i.Index] = link{name: i.Name, up: i.Up, chosen: chosen && can && barred == "", barred: barred, mtu: i.MTU}
		if c.said[badExpression] == "" { // it may fail for many interfaces
			c.logOnce(err, badExpression)
		}
	}
	return links
}

const badExpression = "Fast path: an interface does not take part, because the expression failed"

// wantedDevices returns the devices that the flowtable should have with these interfaces.
func wantedDevices(links map[int]link) deviceSet {
	s := deviceSet{}
	for _, l := range links {
		if l.chosen {
			s[nfnl.Device{Name: l.name}] = true
		}
	}
	return s
}

// sync programs which interfaces take part. After a failure, resync tries again.
func (c *Controller) sync(ctx context.Context) {
	const tries = 20
	refused, err := c.trySync()
	for try := 1; err != nil && try < tries && ctx.Err() == nil; try++ {
		// An interface may have been deleted, or the table may have been modified.
		if err = c.reread(); err == nil {
			refused, err = c.trySync()
		}
	}
	err = errors.Join(err, refused) // an interface may be refused for good
	if c.unsynced = err != nil; c.unsynced {
		c.stats.Errors++
		c.logOnce(err, "Fast path: interfaces could not be changed, will try again")
	}
}

// resync repeats a sync that failed, and follows changes of what other programs have at interfaces.
func (c *Controller) resync(ctx context.Context) {
	c.mu.Lock()
	defer c.mu.Unlock()
	outdated := c.engine.outdated()
	if outdated {
		if err := c.list(); err != nil {
			c.logOnce(err, noSurvey)
			return
		}
	}
	if outdated || c.unsynced {
		c.follow(ctx)
	}
}

// follow programs which interfaces take part. Before the first Reconcile, and after a failure, it only
// leaves interfaces: flows of an earlier run must not bypass what another program has there.
func (c *Controller) follow(ctx context.Context) {
	if c.sequence.Check() == nil {
		c.sync(ctx)
	} else {
		c.logOnce(c.engine.leave(), "Fast path: interfaces could not be left")
	}
}

// reread reads the devices of a flowtable, and the interfaces.
func (c *Controller) reread() error {
	c.unsynced = true
	t, err := c.conn.Contents(table)
	if err != nil {
		return err
	}
	// If there is no flowtable, the kernel does not return so many devices, or the
	// flowtable does not exist. In the second case adding devices fails.
	if f := t.Flowtable(flowtableName); f != nil {
		c.devices = collect.Set(f.Devices)
	}
	return c.list()
}

// trySync commits the differences between the wanted devices and those of the flowtable
// (c.devices), or a new flowtable, and the set of interfaces.
func (c *Controller) trySync() (refused, err error) {
	wanted := wantedDevices(c.links)
	c.batch.Reset()
	if c.unsynced || !maps.Equal(wanted, c.devices) {
		c.writeMembers(wanted)
	}
	if refused, err = c.engine.setDevices(&c.batch, wanted); err == nil && !c.batch.Empty() {
		err = c.conn.Commit(0, &c.batch)
	}
	if err != nil && c.engine.recovers(err) {
		return c.trySync()
	}
	if err == nil && refused == nil {
		c.devices = wanted
	}
	return refused, err
}

// chosen returns all interfaces, by index, and whether they take part, except for loopback.
func (c *Controller) chosen() map[int]bool {
	const loopback = 1 // in each network namespace
	all := map[int]bool{}
	for index, l := range c.links {
		if index != loopback || l.chosen {
			all[index] = l.chosen
		}
	}
	return all
}

// writeMembers writes the set of interfaces.
func (c *Controller) writeMembers(wanted deviceSet) {
	c.batch.FlushSet(table, interfaces)
	for d := range wanted {
		c.batch.AddElement(table, interfaces, interfaceKey(d.Name), nil, "")
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
