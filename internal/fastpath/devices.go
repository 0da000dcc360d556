// SPDX-License-Identifier: Apache-2.0

package fastpath

import (
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

// deviceSet is devices of a flowtable.
type deviceSet map[nfnl.Device]bool

func newDeviceSet(all []nfnl.Device) deviceSet {
	s := deviceSet{}
	for _, d := range all {
		s[d] = true
	}
	return s
}

// list is the devices in order.
func (s deviceSet) list() []nfnl.Device {
	return slices.SortedFunc(maps.Keys(s), func(a, b nfnl.Device) int { return strings.Compare(a.Name, b.Name) })
}

// without is what s has and other has not, in order.
func (s deviceSet) without(other deviceSet) []nfnl.Device {
	difference := deviceSet{}
	for d := range s {
		if !other[d] {
			difference[d] = true
		}
	}
	return difference.list()
}

// list lists the interfaces anew.
func (c *Controller) list() error {
	all, err := netif.Namespace(c.config.NetNS).List()
	if err != nil {
		return fmt.Errorf("fast path: %w", err)
	}
	c.take(netif.Update{Full: true, Changed: all})
	return nil
}

// update takes a change of interfaces into account.
func (c *Controller) update(u netif.Update) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.take(u)
	if c.valid {
		c.sync()
	}
}

// take notes which interfaces there are and which take part.
func (c *Controller) take(u netif.Update) {
	if u.Full {
		c.links, c.chosen = map[int]netif.Interface{}, map[int]string{}
	}
	for _, index := range u.Gone {
		delete(c.links, index)
		delete(c.chosen, index)
	}
	for _, i := range u.Changed {
		if old, had := c.links[i.Index]; had && old.Name != i.Name {
			c.renamed(old.Name, i.Name)
		}
		c.links[i.Index] = i
		chosen, err := c.config.Interfaces.Selects(&i)
		if err != nil && c.said[badExpression] == "" {
			c.complain(err, badExpression) // others will go the same way
		}
		if chosen {
			c.chosen[i.Index] = i.Name
		} else {
			delete(c.chosen, i.Index)
		}
	}
}

const badExpression = "Fast path: an interface takes no part, as the expression has no answer"

// renamed notes an interface's new name. A kernel that keeps devices by themselves
// keeps it in the flowtable.
func (c *Controller) renamed(from, to string) {
	if d := (nfnl.Device{Name: from}); !c.able.byName && c.devices[d] {
		delete(c.devices, d)
		c.devices[nfnl.Device{Name: to}] = true
	}
}

// patterns are names and prefixes of names that the kernel itself can match; nil when the
// kernel or the expression does not allow that.
func (c *Controller) patterns() (all []nfnl.Device) {
	if !c.able.prefixes {
		return nil
	}
	for _, p := range c.config.Interfaces.Patterns() {
		all = append(all, nfnl.Device{Name: p.Name, Prefix: p.Prefix})
	}
	return all
}

// wanted are the devices that the flowtable should have.
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

// wantedNow is what wanted will be once the Controller has been notified of all changes of
// interfaces so far.
func (c *Controller) wantedNow() (deviceSet, error) {
	if p := c.patterns(); p != nil {
		return newDeviceSet(p), nil
	}
	all, err := netif.Namespace(c.config.NetNS).List()
	s := deviceSet{}
	for i := range all {
		if chosen, _ := c.config.Interfaces.Selects(&all[i]); chosen { // an error means no
			s[nfnl.Device{Name: all[i].Name}] = true
		}
	}
	return s, err
}

// wantsHardware says whether to hand flows to hardware: when asked to, and when all
// interfaces take them.
func (c *Controller) wantsHardware() bool {
	if c.config.Hardware == Off {
		return false
	}
	var refused error
	wanted := c.wanted().list()
	if len(wanted) == 0 {
		return false
	}
	for _, d := range wanted {
		var e *nfnl.BatchError
		if refused = canHave(c.conn, nfnl.FlowtableHardware, []nfnl.Device{d}); errors.As(refused, &e) {
			refused = fmt.Errorf("interface %s: its driver does not take flows: %w", d.Name, e.Errno)
		}
		if refused != nil {
			break
		}
	}
	if refused != nil {
		c.refusedHardware(refused)
	}
	return refused == nil
}

func (c *Controller) refusedHardware(err error) {
	if c.config.Hardware == On && c.complain(err, "Fast path: no hardware offload, connections take the fast path in software") && c.config.NoHardware != nil {
		c.config.NoHardware(err)
	}
}

// sync programs which interfaces take part, in the flowtable and in the set of
// interfaces. After a failure it is tried again by resync.
func (c *Controller) sync() {
	err := c.trySync()
	for try := 1; err != nil && try < maxTries; try++ {
		// Interfaces may have been deleted, or our table may have been modified.
		if c.devices, err = c.readDevices(); err != nil {
			break
		}
		if err = c.list(); err == nil {
			err = c.trySync()
		}
	}
	c.unsynced = err != nil
	if err != nil {
		c.stats.Errors++
		c.complain(err, "Fast path: interfaces could not be changed, will try again")
	}
}

// resync tries again what failed.
func (c *Controller) resync() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.valid && c.unsynced {
		c.sync()
	}
}

func (c *Controller) readDevices() (deviceSet, error) {
	f, err := readFlowtable(c.conn)
	if err != nil {
		return nil, fmt.Errorf("reading flowtable %s: %w", flowtableName, err)
	}
	if f == nil {
		// The kernel does not list so many devices, or the flowtable does not
		// exist. In the second case adding to it fails.
		return c.devices, nil
	}
	return newDeviceSet(f.Devices), nil
}

// trySync commits, in one transaction, what the flowtable and the set of interfaces lack
// and what they have too much. It assumes that the kernel has c.devices and c.members.
func (c *Controller) trySync() error {
	wanted := c.wanted()
	c.batch.Reset()
	if err := c.writeDevices(wanted); err != nil {
		return err
	}
	c.writeMembers(wanted)
	err := c.conn.Commit(0, &c.batch)
	if errors.Is(err, unix.EOPNOTSUPP) && c.hardware {
		// A new interface's driver does not take flows.
		c.refusedHardware(err)
		if err := c.leaveHardware(); err != nil {
			return err
		}
		return c.trySync()
	}
	if err != nil {
		return err
	}
	c.devices, c.members = wanted, maps.Clone(wanted)
	return nil
}

// writeDevices writes what makes the flowtable's devices the wanted ones. It replaces the
// flowtable when a device leaves that is up: taking it out would not end its flows. Those
// of a device that is down have ended.
func (c *Controller) writeDevices(wanted deviceSet) error {
	add, del := wanted.without(c.devices), c.devices.without(wanted)
	exists, up := deviceSet{}, deviceSet{}
	for _, l := range c.links {
		d := nfnl.Device{Name: l.Name}
		exists[d], up[d] = true, l.Up
	}
	if !c.able.byName {
		// The kernel has taken out those that do not exist any more, and refuses to
		// do it again.
		del = slices.DeleteFunc(del, func(d nfnl.Device) bool { return !exists[d] })
	}
	if slices.ContainsFunc(del, func(d nfnl.Device) bool { return up[d] }) {
		return c.writeReplacement(&c.batch, wanted.list())
	}
	if len(del) > 0 {
		c.batch.DeleteDevices(table, c.flowtable(del))
	}
	if len(add) > 0 {
		c.batch.AddFlowtable(table, c.flowtable(add))
	}
	return nil
}

// writeMembers writes what makes the set of interfaces the wanted one.
func (c *Controller) writeMembers(wanted deviceSet) {
	set := interfaces(c.patterns() != nil)
	for _, d := range c.members.without(wanted) {
		c.member(set, d, c.batch.DeleteInterval, c.batch.DeleteElement)
	}
	for _, d := range wanted.without(c.members) {
		c.member(set, d, c.batch.AddInterval, func(t nfnl.Table, s *nfnl.Set, key []byte) {
			c.batch.AddElement(t, s, key, nil, "")
		})
	}
}

// leaveHardware replaces the flowtable by one without the flag for hardware.
func (c *Controller) leaveHardware() error {
	c.hardware = false
	c.batch.Reset()
	if err := c.writeReplacement(&c.batch, c.devices.list()); err != nil {
		return err
	}
	return c.conn.Commit(0, &c.batch)
}

// member writes an element of the set of interfaces: an interval where it can have
// prefixes.
func (c *Controller) member(set *nfnl.Set, d nfnl.Device, interval func(nfnl.Table, *nfnl.Set, []byte, []byte), element func(nfnl.Table, *nfnl.Set, []byte)) {
	if first, last := interfaceRange(d); set.Flags&unix.NFT_SET_INTERVAL != 0 {
		interval(table, set, first, last)
	} else {
		element(table, set, first)
	}
}

// complain logs an error unless it is the one that was last logged with this message. It
// returns whether it did.
func (c *Controller) complain(err error, message string) (news bool) {
	if news = err != nil && c.said[message] != err.Error(); news {
		c.said[message] = err.Error()
		klog.ErrorS(err, message)
	}
	return news
}
