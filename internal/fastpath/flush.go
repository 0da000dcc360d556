// SPDX-License-Identifier: Apache-2.0

package fastpath

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/collect"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/fastpath/ebpf"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"github.com/slipstream-proxy/slipstream/internal/node/conntrack"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"
)

// Flush selects connections that return to the slow path. None of them is interrupted, and
// none gets another backend.
//
// The kernel can only flush all connections of a flowtable at once. So all return, and those that are not
// selected are offloaded again with their next packet. The selected ones stay on the slow
// path for the time Hold. If Hold is 0, they too are offloaded again, after a packet has
// passed all rules.
type Flush struct {
	All       bool
	Frontends []desired.FrontendKey // of the connections
	Addresses []netip.Addr          // of their clients or backends
	Hold      time.Duration
}

// ruleHold is how long connections stay on the slow path to pass rules that are new. After a
// change of a NetworkPolicy, a policy engine needs some time to program it.
const ruleHold = 5 * time.Second

// PolicyChanged has all connections pass all rules for some seconds.
func (c *Controller) PolicyChanged(ctx context.Context) error {
	return c.Flush(ctx, Flush{All: true, Hold: ruleHold})
}

// Flush returns connections to the slow path. They have returned when it returns.
func (c *Controller) Flush(ctx context.Context, f Flush) error {
	if c.Off() {
		return nil
	}
	if err := c.flush(ctx, f); err != nil {
		return err
	}
	if err := c.settle(c.config.NetNS); err != nil {
		return err
	}
	return c.engine.flushed(&f)
}

// selects reports whether a connection of the engine EBPF returns to the slow path. If none is
// selected, all return, to pass the rules.
func (f *Flush) selects(flow *ebpf.Flow) bool {
	frontend := desired.FrontendKey{AddrPort: flow.Original.Dst, Protocol: desired.Protocol(flow.Original.Protocol)}
	return f.All || len(f.Frontends)+len(f.Addresses) == 0 || slices.Contains(f.Frontends, frontend) ||
		slices.ContainsFunc(f.Addresses, func(a netip.Addr) bool {
			return a.Unmap() == flow.Original.Src.Addr() || a.Unmap() == flow.Reply.Src.Addr()
		})
}

func (c *Controller) flush(ctx context.Context, f Flush) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := flush(ctx, c.conn, f, c.engine.renew); err != nil {
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
	renew := func(t *nfnl.Contents) (*nfnl.Batch, error) { // of the engine that has made the table
		if isForEBPF(t) {
			return &nfnl.Batch{}, nil
		}
		return renewFlowtable(t, nil)
	}
	if err := errors.Join(flush(ctx, conn, f, renew), conn.Close()); err != nil { // Close waits like nfnl.Settle
		return err
	}
	exists, err := ebpf.Delete(netns, f.selects)
	if err != nil || !exists {
		return err
	}
	// The Controller may just have been adding one of them.
	select {
	case <-ctx.Done():
	case <-time.After(time.Second):
	}
	_, err = ebpf.Delete(netns, f.selects)
	return err
}

// flush has the engine renew what flows depend on, and holds connections. It does nothing if the table
// does not exist.
func flush(ctx context.Context, conn *nfnl.Conn, f Flush, renew func(*nfnl.Contents) (*nfnl.Batch, error)) error {
	_, err := conn.CommitRead(ctx, func() ([]*nfnl.Batch, error) {
		t, err := conn.Contents(table)
		if t == nil {
			return nil, err
		}
		b, err := renew(t)
		if err == nil && f.Hold > 0 {
			err = f.hold(conn, b)
		}
		return []*nfnl.Batch{b}, err
	})
	if err != nil {
		return fmt.Errorf("fast path: returning connections to the slow path: %w", err)
	}
	return nil
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
	for k := range collect.Set(f.Frontends) {
		put(familyOf(k.Addr()).heldFrontends, frontendKey(nil, k))
	}
	for a := range collect.Set(f.Addresses) {
		a = a.Unmap()
		put(familyOf(a).heldAddresses, a.AsSlice())
	}
	return err
}

// cleanHold is how long connections are kept on the slow path until their entries are
// deleted, and cleanEvery the interval of tries.
const (
	cleanHold  = 2 * time.Second
	cleanEvery = 20 * time.Millisecond
)

// Cleaning returns a function that calls clean, and also deletes the entries of offloaded
// connections if the kernel refuses that with EBUSY (before Linux 6.4 without its fix). It
// returns these connections to the slow path first.
func (c *Controller) Cleaning(clean conntrack.CleanFunc) conntrack.CleanFunc {
	return func(ctx context.Context, stale []desired.StaleFlows) (conntrack.Stats, error) {
		stats, err := clean(ctx, stale)
		if !errors.Is(err, unix.EBUSY) {
			return stats, err
		}
		f := Flush{Hold: cleanHold}
		for _, s := range stale {
			if s.Protocol != desired.TCP { // TCP's are of connections without an answer, which are not offloaded
				f.Frontends = append(f.Frontends, s.Frontends...)
				continue
			}
			f.Addresses = append(f.Addresses, collect.From(s.Backends, func(b desired.Backend) netip.Addr { return b.Addr() })...)
		}
		if e := c.Flush(ctx, f); e != nil {
			return stats, errors.Join(err, e)
		}
		// Connections count as offloaded until the kernel has freed the old flowtable.
		_ = wait.PollUntilContextTimeout(ctx, cleanEvery, cleanHold, false, func(ctx context.Context) (bool, error) {
			var more conntrack.Stats
			more, err = clean(ctx, stale)
			stats.Dumps += more.Dumps
			stats.Entries += more.Entries
			stats.Deleted += more.Deleted
			return !errors.Is(err, unix.EBUSY), nil
		}) // its error is about time, while err is clean's last
		return stats, err
	}
}
