// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/mdlayher/netlink"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/ctnetlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Conn finds and deletes entries of the conntrack table of one network namespace. It is not
// safe for concurrent use.
type Conn struct {
	// Observe, if not nil, is called after the search of an address family, with its
	// duration and the number of deleted entries.
	Observe func(f desired.Family, took time.Duration, deleted int)

	conn *ctnetlink.Conn
	able map[family]bool // whether the kernel compares addresses, see probe

	unfiltered bool // for tests: as on a kernel without filters
}

// New opens a Conn, see [ctnetlink.Dial].
func New(netns int) (*Conn, error) {
	conn, err := ctnetlink.Dial(netns)
	return &Conn{conn: conn, able: map[family]bool{}}, err
}

// Close closes the socket.
func (c *Conn) Close() error { return c.conn.Close() }

// Stats are numbers about one [Conn.Clean].
type Stats struct {
	Dumps   int // number of times that the kernel walked its table, without the probe
	Entries int // number of entries that it reported
	Deleted int // number of entries that were stale and still existed
}

// Clean deletes the entries that flows describe. The next packet of a TCP connection is then
// sent to another backend or refused, and reset in both cases.
//
// Flows are in the order in which they were found. A [desired.StaleFlows] with Only replaces
// earlier ones about the same frontend, because an endpoint that was removed may serve again.
//
// After a failure Clean continues with the rest; Stats are correct in any case. When
// ctx ends, it stops.
func (c *Conn) Clean(ctx context.Context, flows []desired.StaleFlows) (Stats, error) {
	return c.run(ctx, plan(flows))
}

// ForgetIPVS deletes the entries of flows to virtual servers of IPVS, given by address and
// port, because NAT rules only see a flow's first packet. Entries of flows that NAT rules
// have translated remain: IPVS, which translates by itself, does not set their status
// (IPS_DST_NAT). Protocol is UDP or SCTP.
func (c *Conn) ForgetIPVS(ctx context.Context, protocol desired.Protocol, servers []netip.AddrPort) (Stats, error) {
	var searches []*search
	for _, server := range servers {
		s := searchIn(&searches, familyOf(server))
		s.filter.addProtocol(protocol)
		s.filter.to.add(server)
		s.filter.replies.addAll()
		s.frontends[desired.FrontendKey{AddrPort: server, Protocol: protocol}] = &frontend{noNAT: true}
	}
	return c.run(ctx, searches)
}

// run deletes the entries that searches find.
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

// find returns requests that delete the stale entries.
func (c *Conn) find(ctx context.Context, s *search, stats *Stats) (stale []netlink.Message, err error) {
	var e ctnetlink.Entry
	var bad error
	visit := func(data []byte) {
		stats.Entries++
		if e.Parse(data) && e.ID != nil && s.stale(&e) {
			m, err := deletion(&e)
			if err != nil {
				bad = err
				return
			}
			stale = append(stale, m)
		}
	}
	err = c.walk(ctx, s, stats, visit)
	return stale, errors.Join(err, bad)
}

// walk calls visit with the entries that match a search's filter, or with all, if the kernel does not
// have such filters.
func (c *Conn) walk(ctx context.Context, s *search, stats *Stats, visit func(data []byte)) error {
	if !c.unfiltered {
		if err := c.findFiltered(ctx, s, stats, visit); err == nil || !refused(err) {
			return err
		}
	}
	stats.Dumps++
	return c.conn.Dump(ctx, uint8(s.family), nil, visit)
}

// Destinations lists the destinations, before translation, of translated flows of UDP and SCTP.
func Destinations(ctx context.Context) (all []desired.FrontendKey, err error) {
	c, err := New(0)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	to := map[desired.FrontendKey]bool{}
	for _, f := range []family{ipv4, ipv6} {
		s := &search{family: f}
		s.filter.addProtocol(desired.UDP)
		s.filter.addProtocol(desired.SCTP)
		s.filter.to.addAll()
		s.filter.replies.addAll()
		var e ctnetlink.Entry
		err = errors.Join(err, c.walk(ctx, s, &Stats{}, func(data []byte) {
			if e.Parse(data) && e.Status&ctnetlink.StatusDNAT != 0 && e.Original.Protocol != uint8(desired.TCP) {
				to[destination(&e)] = true
			}
		}))
	}
	return slices.Collect(maps.Keys(to)), err
}

// findFiltered calls visit with the entries that match the filter.
func (c *Conn) findFiltered(ctx context.Context, s *search, stats *Stats, visit func(data []byte)) error {
	addresses := c.addresses(ctx, s.family)
	for _, f := range s.filter.parts(addresses) {
		attributes, err := f.attributes(s.family, addresses)
		if err != nil {
			return fmt.Errorf("filter: %w", err)
		}
		stats.Dumps++
		if err := c.conn.Dump(ctx, uint8(s.family), attributes, visit); err != nil {
			return err
		}
	}
	return nil
}

// addresses reports whether the kernel compares addresses in a family, which it probes at the first
// use. If that fails, it assumes that it does not, and the next call probes again.
func (c *Conn) addresses(ctx context.Context, f family) bool {
	able, known := c.able[f]
	if known {
		return able
	}
	able, err := c.probe(ctx, f)
	if err != nil {
		return false
	}
	c.able[f] = able
	return able
}

// refused reports whether the kernel does not support a request.
func refused(err error) bool {
	return errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ERANGE)
}

// delete sends deletions. It ignores entries that do not exist any more, and returns the
// first of other errors.
func (c *Conn) delete(ctx context.Context, deletions []netlink.Message, stats *Stats) error {
	var first error
	failed := 0
	const deleteAtOnce = 64 // deletions in one message
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

// family is an address family in netlink's numbers.
type family uint8

const (
	ipv4 family = unix.AF_INET
	ipv6 family = unix.AF_INET6
)

func familyOf(a netip.AddrPort) family {
	if a.Addr().Is4() {
		return ipv4
	}
	return ipv6
}

func (f family) desired() desired.Family {
	if f == ipv4 {
		return desired.IPv4
	}
	return desired.IPv6
}

func (f family) String() string { return f.desired().String() }

// deletion returns a request to delete an entry. Because of its ID, the kernel keeps a later
// entry of the same flow. (A request without a tuple would empty the whole table; Parse
// accepts no such entry.)
func deletion(e *ctnetlink.Entry) (netlink.Message, error) {
	a := netlink.NewAttributeEncoder()
	a.Bytes(nl.CTA_TUPLE_ORIG|unix.NLA_F_NESTED, e.Tuple)
	a.Bytes(nl.CTA_ID, e.ID)
	if e.Zone != nil {
		a.Bytes(nl.CTA_ZONE, e.Zone)
	}
	return ctnetlink.Request(ctnetlink.MsgDelete, netlink.Acknowledge, uint8(familyOf(e.Original.Dst)), a)
}
