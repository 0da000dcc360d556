// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"

	"github.com/mdlayher/netlink"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/ctnetlink"
	"golang.org/x/sys/unix"
)

// abilities are parts of a filter that the kernel does right in one family.
//
// A kernel without filters reports more than it is asked for, which does no harm.
// But kernels have also reported less. From Linux 5.8 to 5.15.14 they read of the
// reply's tuple what is flagged in the original one, and compare with zeros for the
// rest. And from 5.8 on they compare IPv6 addresses the wrong way round: 6.12.117
// has that mended, 6.18.44 has not.
type abilities struct {
	addresses bool // compares addresses
	replies   bool // compares the reply's tuple
}

// The probe's entry is between two addresses that are nobody's: the IPv4 dummy
// address (RFC 7600), and one of the discard-only prefix (RFC 6666). The
// destination's port is that of the discard protocol.
var probeAddress = map[family]netip.Addr{
	ipv4: netip.MustParseAddr("192.0.0.8"),
	ipv6: netip.MustParseAddr("100::8"),
}

const (
	probePort    = 9
	probeTimeout = 60 // seconds, should we not get to delete it
)

// probe finds out what the kernel can do, by having it look for an entry made for
// the purpose.
func (c *Conn) probe(ctx context.Context, f family) (able abilities, err error) {
	to := endpoint{probeAddress[f].As16(), probePort}
	from := endpoint{to.ip, uint16(1024 + rand.IntN(60_000))}
	if err := c.ask(ctx, ctnetlink.MsgNew, netlink.Create|netlink.Excl, f, func(a *netlink.AttributeEncoder) {
		encodeTuple(a, ctnetlink.TupleOrig, f, desired.UDP, &from, &to)
		encodeTuple(a, ctnetlink.TupleReply, f, desired.UDP, &to, &from)
		a.Bytes(ctnetlink.Timeout, binary.BigEndian.AppendUint32(nil, probeTimeout))
	}); err != nil {
		return able, fmt.Errorf("making an entry to probe filters with: %w", err)
	}
	defer func() {
		e := c.ask(ctx, ctnetlink.MsgDelete, 0, f, func(a *netlink.AttributeEncoder) {
			encodeTuple(a, ctnetlink.TupleOrig, f, desired.UDP, &from, &to)
		})
		if e != nil && !errors.Is(e, unix.ENOENT) {
			err = errors.Join(err, fmt.Errorf("deleting the entry to probe filters with: %w", e))
		}
	}()
	finds := func(filter filter, able abilities) (found bool) {
		attributes, e := filter.attributes(f, able)
		if e == nil {
			var seen entry
			e = c.dump(ctx, f, attributes, func(data []byte) {
				found = found || seen.parse(data) && seen.destination == to && seen.replies == to
			})
		}
		if e != nil && !refused(e) {
			err = errors.Join(err, e)
		}
		return found
	}
	var byAddress, byReply filter
	byAddress.addProtocol(desired.UDP)
	byAddress.to.add(to)
	byReply.addProtocol(desired.UDP)
	byReply.replies.add(to)
	byReply.replies.addressDiffers = true
	able.addresses = finds(byAddress, abilities{addresses: true})
	able.replies = finds(byReply, abilities{replies: true})
	return able, err
}

// ask sends one request and waits for its acknowledgement.
func (c *Conn) ask(ctx context.Context, typ netlink.HeaderType, flags netlink.HeaderFlags, f family, fill func(*netlink.AttributeEncoder)) error {
	a := netlink.NewAttributeEncoder()
	fill(a)
	m, err := request(typ, flags|netlink.Acknowledge, f, a)
	if err != nil {
		return err
	}
	var refused error
	err = c.conn.Execute(ctx, []netlink.Message{m}, func(e error) { refused = e })
	return errors.Join(err, refused)
}
