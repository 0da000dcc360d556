// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/mdlayher/netlink"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/ctnetlink"
	"golang.org/x/sys/unix"
)

// Conn finds and deletes entries of the conntrack table of one network namespace. It is
// for one goroutine at a time.
type Conn struct {
	// Observe, if not nil, is called for each address family that was searched: how long
	// that took, and how many entries were deleted.
	Observe func(f desired.Family, took time.Duration, deleted int)

	conn *ctnetlink.Conn
	able map[family]abilities

	// unfiltered asks for a family's whole table, as from a kernel without
	// filters.
	unfiltered bool
}

// New opens a Conn, see [ctnetlink.Dial].
func New(netns int) (*Conn, error) {
	conn, err := ctnetlink.Dial(netns)
	return &Conn{conn: conn, able: map[family]abilities{}}, err
}

// Close closes the socket.
func (c *Conn) Close() error { return c.conn.Close() }

// Stats tell what [Conn.Clean] did.
type Stats struct {
	Dumps   int // how often the kernel walked its table, without the probe
	Entries int // entries that it reported
	Deleted int // of these, those that were stale and still there
}

// Clean deletes the entries that flows describe. Those of TCP are left alone,
// whatever flows say.
//
// Flows are in the order in which they were found: a [desired.StaleFlows] with
// Only replaces what came before it about the same frontend, as an endpoint
// that was gone then may serve again.
//
// When something fails, what can be done is done all the same; Stats are right
// in any case. When ctx ends, Clean stops.
func (c *Conn) Clean(ctx context.Context, flows []desired.StaleFlows) (Stats, error) {
	return c.run(ctx, plan(flows))
}

// run deletes what searches find.
func (c *Conn) run(ctx context.Context, searches []*search) (Stats, error) {
	var stats Stats
	var failed []error
	for _, s := range searches {
		start, before := time.Now(), stats
		stale, err := c.find(ctx, s, &stats)
		if err == nil {
			err = c.delete(ctx, stale, &stats)
		}
		if c.Observe != nil && stats.Dumps > before.Dumps {
			c.Observe(s.family.desired(), time.Since(start), stats.Deleted-before.Deleted)
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("conntrack entries of %v: %w", s.family, err))
		}
	}
	return stats, errors.Join(failed...)
}

// find returns the requests that delete what is stale.
func (c *Conn) find(ctx context.Context, s *search, stats *Stats) (stale []netlink.Message, err error) {
	var e entry
	var bad error
	visit := func(data []byte) {
		stats.Entries++
		if e.parse(data) && s.stale(&e) {
			m, err := e.deletion()
			if err != nil {
				bad = err
				return
			}
			stale = append(stale, m)
		}
	}
	if !c.unfiltered {
		err := c.findFiltered(ctx, s, stats, visit)
		if err == nil || !refused(err) {
			return stale, errors.Join(err, bad)
		}
		stale = nil
	}
	// Whatever it is that this kernel does not like of the filter.
	stats.Dumps++
	err = c.dump(ctx, s.family, nil, visit)
	return stale, errors.Join(err, bad)
}

// findFiltered calls visit with what the kernel's filter lets through.
func (c *Conn) findFiltered(ctx context.Context, s *search, stats *Stats, visit func(data []byte)) error {
	able := c.abilities(ctx, s.family)
	for _, f := range s.filter.parts(able) {
		attributes, err := f.attributes(s.family, able)
		if err != nil {
			return fmt.Errorf("filter: %w", err)
		}
		stats.Dumps++
		if err := c.dump(ctx, s.family, attributes, visit); err != nil {
			return err
		}
	}
	return nil
}

// abilities are what the kernel can do in a family. It is asked when there is
// something to be found for the first time. Where it cannot be asked, little is
// taken for granted, and it will be asked again.
func (c *Conn) abilities(ctx context.Context, f family) abilities {
	able, known := c.able[f]
	if known {
		return able
	}
	able, err := c.probe(ctx, f)
	if err != nil {
		return abilities{}
	}
	c.able[f] = able
	return able
}

// refused says that the kernel understood a request and does not do such things.
func refused(err error) bool {
	return errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ERANGE)
}

// dump has the kernel report entries and calls visit with each.
func (c *Conn) dump(ctx context.Context, f family, attributes []byte, visit func(data []byte)) error {
	return c.conn.Dump(ctx, uint8(f), attributes, visit)
}

// deleteAtOnce is how many deletions go to the kernel in one message.
const deleteAtOnce = 64

// delete sends deletions. An entry that does not exist any more is no error; of other
// errors only the first is returned.
func (c *Conn) delete(ctx context.Context, deletions []netlink.Message, stats *Stats) error {
	var first error
	failed := 0
	for batch := range slices.Chunk(deletions, deleteAtOnce) {
		err := c.conn.Execute(ctx, batch, func(err error) {
			switch {
			case err == nil:
				stats.Deleted++
			case !errors.Is(err, unix.ENOENT):
				failed++
				first = cmp.Or(first, err)
			}
		})
		if err != nil {
			return fmt.Errorf("deletions: %w", err)
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d were not deleted, the first: %w", failed, len(deletions), first)
	}
	return nil
}
