// SPDX-License-Identifier: Apache-2.0

package fastpath

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"golang.org/x/sys/unix"
)

// Flush says which connections are to come back to the slow path. None of them is
// cut, and none loses its backend.
//
// The kernel lets go of all flows or of none. So all connections come back, and
// those that are not meant are offloaded again with their next packet. Those that
// are meant are kept on the slow path for as long as Hold says; with a Hold of 0
// they, too, go again once they have passed all rules.
type Flush struct {
	All       bool
	Frontends []desired.FrontendKey // that connections were made to
	Addresses []netip.Addr          // of clients or backends: of pods
	Hold      time.Duration
}

// Flush brings connections back to the slow path. When it returns, they are.
func (c *Controller) Flush(f Flush) error {
	if c.off() {
		return nil
	}
	if err := c.flush(f); err != nil {
		return err
	}
	return c.settle(c.config.NetNS)
}

func (c *Controller) flush(f Flush) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := flush(c.conn, f, c.devices.list()); err != nil {
		c.stats.Errors++
		return err
	}
	c.stats.Flushes++
	return nil
}

// FlushTable brings connections back to the slow path in a network namespace, given
// by file descriptor (0 is the calling thread's), without its Controller, which
// does not mind. Where there is no fast path, nothing is to be done.
func FlushTable(netns int, f Flush) error {
	conn, err := nfnl.Dial(netns)
	if err != nil {
		return err
	}
	return errors.Join(flush(conn, f, nil), conn.Close()) // see nfnl.Settle
}

// flush replaces the flowtable by one that is the same but empty. devices are for
// when the kernel does not show which it has.
func flush(conn *nfnl.Conn, f Flush, devices []nfnl.Device) error {
	for try := 1; ; try++ {
		err := tryFlush(conn, f, devices)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, errNoTable):
			return nil
		// What was read may be outdated: by others, by interfaces that have
		// gone, by elements whose time was over.
		case try < maxTries && (errors.Is(err, nfnl.ErrGeneration) || errors.Is(err, nfnl.ErrInterrupted) || errors.Is(err, unix.ENOENT)):
		default:
			return fmt.Errorf("fast path: bringing connections back to the slow path: %w", err)
		}
	}
}

var errNoTable = errors.New("no fast path")

func tryFlush(conn *nfnl.Conn, f Flush, devices []nfnl.Device) error {
	generation, err := conn.Generation()
	if err != nil {
		return err
	}
	if _, err := conn.Table(table); errors.Is(err, unix.ENOENT) {
		return errNoTable
	} else if err != nil {
		return err
	}
	ft, err := readFlowtable(conn)
	if err != nil {
		return err
	}
	if ft == nil {
		ft = &nfnl.FlowtableInfo{Flowtable: nfnl.Flowtable{Name: flowtableName, Priority: flowtablePriority, Flags: nfnl.FlowtableCounter, Devices: devices}}
		if devices == nil {
			return errors.New("the kernel does not show the flowtable")
		}
	}
	var b nfnl.Batch
	if err := replaceFlowtable(conn, &b, &ft.Flowtable); err != nil {
		return err
	}
	if f.Hold > 0 {
		if err := f.hold(conn, &b); err != nil {
			return err
		}
	}
	return conn.Commit(generation, &b)
}

// writeReplacement writes what makes the flowtable one with other devices, and with
// no flows.
func (c *Controller) writeReplacement(b *nfnl.Batch, devices []nfnl.Device) error {
	return replaceFlowtable(c.conn, b, c.flowtable(devices))
}

// replaceFlowtable writes a new flowtable in the old one's place. All rules are
// written anew, as they are, for none may use a flowtable that is deleted.
func replaceFlowtable(conn *nfnl.Conn, b *nfnl.Batch, f *nfnl.Flowtable) error {
	rules, err := readRules(conn)
	if err != nil {
		return err
	}
	b.FlushTable(table)
	b.DeleteFlowtable(table, f.Name)
	b.AddFlowtable(table, f)
	for _, r := range rules {
		b.AddRuleInfo(table, r)
	}
	return nil
}

func readRules(conn *nfnl.Conn) (all []nfnl.RuleInfo, err error) {
	err = nfnl.Undisturbed(func() error {
		all = nil
		return conn.Rules(table, func(r nfnl.RuleInfo) {
			all = append(all, nfnl.RuleInfo{Chain: r.Chain, Expressions: slices.Clone(r.Expressions), Comment: slices.Clone(r.Comment)})
		})
	})
	return all, err
}

// hold writes the elements that keep connections on the slow path.
func (f *Flush) hold(conn *nfnl.Conn, b *nfnl.Batch) error {
	var err error
	put := func(set *nfnl.Set, key []byte) {
		// An element that is there would keep the time that it has.
		there, e := conn.Has(table, set.Name, key)
		if there {
			b.DeleteElement(table, set, key)
		}
		b.AddElementFor(table, set, key, f.Hold)
		err = errors.Join(err, e)
	}
	for i := range families {
		if f.All {
			put(heldFamilies, []byte{byte(families[i].Family)})
		}
	}
	for _, k := range compact(f.Frontends) {
		put(familyOf(k.Addr()).heldFrontends, frontendKey(nil, k))
	}
	for _, a := range compact(f.Addresses) {
		a = a.Unmap()
		put(familyOf(a).heldAddresses, a.AsSlice())
	}
	return err
}

// compact leaves out what is there twice.
func compact[T comparable](all []T) (once []T) {
	seen := map[T]bool{}
	for _, a := range all {
		if !seen[a] {
			seen[a] = true
			once = append(once, a)
		}
	}
	return once
}
