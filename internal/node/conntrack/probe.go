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
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// The probe's entry is between unused addresses: the IPv4 dummy address (RFC 7600), and one
// of the discard-only prefix (RFC 6666). The destination's port is that of the discard
// protocol.
var probeAddress = map[family]netip.Addr{
	ipv4: netip.MustParseAddr("192.0.0.8"),
	ipv6: netip.MustParseAddr("100::8"),
}

const (
	probePort    = 9
	probeTimeout = 60 // seconds, if the entry is not deleted
)

// probe determines whether the kernel compares the addresses of a filter correctly in a family, by
// requesting an entry that it creates.
//
// A kernel without filters reports more entries than requested, which is harmless. But some
// kernels report fewer, because they negate the comparison of IPv6 addresses: 6.12.117 has the
// fix, 6.18.44 does not.
func (c *Conn) probe(ctx context.Context, f family) (addresses bool, err error) {
	to := netip.AddrPortFrom(probeAddress[f], probePort)
	from := netip.AddrPortFrom(probeAddress[f], uint16(1024+rand.IntN(60_000)))
	there := ctnetlink.Tuple{Protocol: uint8(desired.UDP), Src: from, Dst: to}
	back := ctnetlink.Tuple{Protocol: uint8(desired.UDP), Src: to, Dst: from}
	if err := c.ask(ctx, ctnetlink.MsgNew, netlink.Create|netlink.Excl, f, func(a *netlink.AttributeEncoder) {
		there.Encode(a, nl.CTA_TUPLE_ORIG)
		back.Encode(a, nl.CTA_TUPLE_REPLY)
		a.Bytes(nl.CTA_TIMEOUT, binary.BigEndian.AppendUint32(nil, probeTimeout))
	}); err != nil {
		return false, fmt.Errorf("creating an entry to probe filters: %w", err)
	}
	defer func() {
		e := c.ask(ctx, ctnetlink.MsgDelete, 0, f, func(a *netlink.AttributeEncoder) {
			there.Encode(a, nl.CTA_TUPLE_ORIG)
		})
		if e != nil && !errors.Is(e, unix.ENOENT) {
			err = errors.Join(err, fmt.Errorf("deleting the entry to probe filters: %w", e))
		}
	}()
	byAddress := filter{protocols: []desired.Protocol{desired.UDP}}
	byAddress.to.add(to)
	attributes, err := byAddress.attributes(f, true)
	if err == nil {
		var seen ctnetlink.Entry
		err = c.conn.Dump(ctx, uint8(f), attributes, func(data []byte) {
			addresses = addresses || seen.Parse(data) && seen.Original.Dst == to && seen.Reply.Src == to
		})
	}
	if refused(err) {
		err = nil
	}
	return addresses, err
}

// ask sends one request and waits for its acknowledgement.
func (c *Conn) ask(ctx context.Context, typ netlink.HeaderType, flags netlink.HeaderFlags, f family, fill func(*netlink.AttributeEncoder)) error {
	a := netlink.NewAttributeEncoder()
	fill(a)
	m, err := ctnetlink.Request(typ, flags|netlink.Acknowledge, uint8(f), a)
	if err != nil {
		return err
	}
	var refused error
	err = c.conn.Execute(ctx, []netlink.Message{m}, func(e error) { refused = e })
	return errors.Join(err, refused)
}
