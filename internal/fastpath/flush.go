// SPDX-License-Identifier: Apache-2.0

package fastpath

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"golang.org/x/sys/unix"
)

// Flush selects connections that return to the slow path. None of them is interrupted, and
// none gets another backend.
//
// The kernel can only flush all connections at once. So all return, and those that are not
// selected are offloaded again with their next packet. The selected ones stay on the slow
// path for the time Hold. If Hold is 0, they too are offloaded again, after a packet has
// passed all rules.
type Flush struct {
	All       bool
	Frontends []desired.FrontendKey // of the connections
	Addresses []netip.Addr          // of their clients or backends
	Hold      time.Duration
}

// Flush returns connections to the slow path. They have returned when it returns.
func (c *Controller) Flush(ctx context.Context, f Flush) error {
	if c.off() {
		return nil
	}
	if err := c.flush(ctx, f); err != nil {
		return err
	}
	return c.settle(c.config.NetNS)
}

func (c *Controller) flush(ctx context.Context, f Flush) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := flush(ctx, c.conn, f, c.devices.list()); err != nil {
		c.stats.Errors++
		return err
	}
	c.stats.Flushes++
	return nil
}

// FlushTable returns connections to the slow path in a network namespace, given by file
// descriptor (0 is the calling thread's), without its Controller, which takes that for no
// damage. Without a fast path it does nothing.
func FlushTable(ctx context.Context, netns int, f Flush) error {
	conn, err := nfnl.Dial(netns)
	if err != nil {
		return err
	}
	return errors.Join(flush(ctx, conn, f, nil), conn.Close()) // Close waits like nfnl.Settle
}

// flush replaces the flowtable by an equal one without flows. devices are used if the
// kernel does not return the flowtable's.
func flush(ctx context.Context, conn *nfnl.Conn, f Flush, devices []nfnl.Device) error {
	for try := 1; ; try++ {
		err := ctx.Err()
		if err == nil {
			err = tryFlush(conn, f, devices)
		}
		switch {
		case err == nil:
			return nil
		// The table has changed since it was read, an interface has disappeared, or an
		// element has expired.
		case try < maxTries && (errors.Is(err, nfnl.ErrGeneration) || errors.Is(err, nfnl.ErrInterrupted) || errors.Is(err, unix.ENOENT)):
		default:
			return fmt.Errorf("fast path: returning connections to the slow path: %w", err)
		}
	}
}

// tryFlush does nothing if the table does not exist.
func tryFlush(conn *nfnl.Conn, f Flush, devices []nfnl.Device) error {
	generation, err := conn.Generation()
	if err != nil {
		return err
	}
	if _, err := conn.Table(table); errors.Is(err, unix.ENOENT) {
		return nil
	} else if err != nil {
		return err
	}
	ft, err := readFlowtable(conn)
	if err != nil {
		return err
	}
	if ft == nil {
		if devices == nil {
			return errors.New("the kernel does not return the flowtable")
		}
		ft = &nfnl.FlowtableInfo{Flowtable: nfnl.Flowtable{Name: flowtableName, Priority: flowtablePriority, Flags: nfnl.FlowtableCounter, Devices: devices}}
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

// replaceFlowtable writes a new flowtable in place of the old one. It writes all rules again,
// because a flowtable that rules use cannot be deleted.
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
func (f *Flush) hold(conn *nfnl.Conn, b *nfnl.Batch) (err error) {
	put := func(set *nfnl.Set, key []byte) {
		exists, e := conn.Has(table, set.Name, key)
		err = errors.Join(err, e)
		if exists { // it would keep its timeout
			b.DeleteElement(table, set, key)
		}
		b.AddElementFor(table, set, key, f.Hold)
	}
	if f.All {
		for i := range families {
			put(heldFamilies, []byte{byte(families[i].Family)})
		}
	}
	for k := range unique(f.Frontends) {
		put(familyOf(k.Addr()).heldFrontends, frontendKey(nil, k))
	}
	for a := range unique(f.Addresses) {
		a = a.Unmap()
		put(familyOf(a).heldAddresses, a.AsSlice())
	}
	return err
}

func unique[T comparable](all []T) map[T]bool {
	set := map[T]bool{}
	for _, a := range all {
		set[a] = true
	}
	return set
}
