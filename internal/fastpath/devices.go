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

// update hears of interfaces.
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

// patterns are the names for the kernel to go by itself; nil when it cannot.
func (c *Controller) patterns() (all []nfnl.Device) {
	if !c.able.prefixes {
		return nil
	}
	for _, p := range c.config.Interfaces.Patterns() {
		all = append(all, nfnl.Device{Name: p.Name, Prefix: p.Prefix})
	}
	return all
}

// wanted is what the flowtable ought to have.
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

// sync has the flowtable and the set of interfaces have what they ought to. When
// that fails, it will be tried again.
func (c *Controller) sync() {
	err := c.trySync()
	for try := 1; err != nil && try < maxTries; try++ {
		// Interfaces may have gone, or somebody may have changed our table.
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
		// There are too many devices to be shown, or it is gone; then
		// adding to it fails.
		return c.devices, nil
	}
	return newDeviceSet(f.Devices), nil
}

func (c *Controller) trySync() error {
	wanted := c.wanted()
	add, del := wanted.without(c.devices), c.devices.without(wanted)
	exists := map[nfnl.Device]bool{}
	up := map[nfnl.Device]bool{}
	for _, l := range c.links {
		d := nfnl.Device{Name: l.Name}
		exists[d], up[d] = true, l.Up
	}
	if !c.able.byName {
		// The kernel has taken those out that do not exist any more, and
		// would refuse to do it again.
		del = slices.DeleteFunc(del, func(d nfnl.Device) bool { return !exists[d] })
	}
	c.batch.Reset()
	if slices.ContainsFunc(del, func(d nfnl.Device) bool { return up[d] }) {
		// The flows of an interface that is down are gone. Those of others
		// go only with the flowtable.
		if err := c.writeReplacement(&c.batch, wanted.list()); err != nil {
			return err
		}
	} else {
		if len(del) > 0 {
			c.batch.DeleteDevices(table, c.flowtable(del))
		}
		if len(add) > 0 {
			c.batch.AddFlowtable(table, c.flowtable(add))
		}
	}
	set := interfaces(c.patterns() != nil)
	for _, d := range c.members.without(wanted) {
		c.member(set, d, c.batch.DeleteInterval, c.batch.DeleteElement)
	}
	for _, d := range wanted.without(c.members) {
		c.member(set, d, c.batch.AddInterval, func(t nfnl.Table, s *nfnl.Set, key []byte) {
			c.batch.AddElement(t, s, key, nil, "")
		})
	}
	err := c.commit()
	if errors.Is(err, unix.EOPNOTSUPP) && c.hardware {
		c.refusedHardware(err)
		c.hardware = false
		c.batch.Reset()
		if err := c.writeReplacement(&c.batch, c.devices.list()); err != nil {
			return err
		}
		if err := c.commit(); err != nil {
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

// member writes an element of the set of interfaces: an interval where it can have
// prefixes.
func (c *Controller) member(set *nfnl.Set, d nfnl.Device, interval func(nfnl.Table, *nfnl.Set, []byte, []byte), element func(nfnl.Table, *nfnl.Set, []byte)) {
	if first, last := interfaceRange(d); set.Flags&unix.NFT_SET_INTERVAL != 0 {
		interval(table, set, first, last)
	} else {
		element(table, set, first)
	}
}

// complain logs an error, once for as long as nothing else is to be said in these words.
// It returns whether it did.
func (c *Controller) complain(err error, message string) (news bool) {
	if news = err != nil && c.said[message] != err.Error(); news {
		c.said[message] = err.Error()
		klog.ErrorS(err, message)
	}
	return news
}
