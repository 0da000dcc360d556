// SPDX-License-Identifier: Apache-2.0

package fastpath

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/google/nftables/expr"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"golang.org/x/sys/unix"
)

// Exclude selects connections that are not offloaded, beside those of Services and pods that opt
// out.
//
// A mark or a DSCP value is a property of a packet, often in one direction only, but either
// direction can cause the offload. So the rules look at all packets that pass the hook forward,
// and remember the connection of a packet that matches.
type Exclude struct {
	Addresses []netip.Prefix // of clients and backends, beside desired.SlowPathIPs
	Marks     []Mark         // of packets and of connections
	DSCP      []uint8        // of packets
}

// Mark is a packet mark or connection mark: those that equal Value in the bits of Mask.
type Mark struct{ Value, Mask uint32 }

// ParseMark parses "0x10/0xf0", or "0x10" for all bits.
func ParseMark(text string) (m Mark, err error) {
	value, mask, hasMask := strings.Cut(text, "/")
	parse := func(s string) uint32 {
		n, e := strconv.ParseUint(s, 0, 32)
		if e != nil {
			err = fmt.Errorf("not a mark of 32 bits, such as 0x10 or 0x10/0xf0")
		}
		return uint32(n)
	}
	m = Mark{parse(value), ^uint32(0)}
	if hasMask {
		m.Mask = parse(mask)
	}
	if err == nil && (m.Mask == 0 || m.Value&^m.Mask != 0) {
		err = fmt.Errorf("the mask has none of the bits, or not all bits of the value")
	}
	return m, err
}

// ParsePrefix parses a range of addresses, or one address.
func ParsePrefix(text string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(text); err == nil {
		return netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen()), nil
	}
	p, err := netip.ParsePrefix(text)
	if err != nil || p.Addr().Is4In6() {
		return p, fmt.Errorf("not an address or a range of addresses")
	}
	return p.Masked(), nil
}

// Connections of packets that match are remembered by their ID. Each such packet renews the
// time. If there are more of them, those packets themselves still do not cause an offload.
const (
	rememberFor  = time.Hour
	mostRemember = 1 << 16
)

// ctKeyID is the connection's ID (NFT_CT_ID), a hash that differs for all connections that exist.
const ctKeyID expr.CtKey = 23

var remembered = &nfnl.Set{
	Name: "excluded", KeyType: nfnl.TypeInteger, KeyLen: 4, KeyTypeof: nfnl.CtID,
	Flags: unix.NFT_SET_TIMEOUT | unix.NFT_SET_EVAL, Size: mostRemember,
}

// byPacket writes the rules for properties of packets, before all others.
func (e *Exclude) byPacket(rule writeRule) {
	if len(e.Marks)+len(e.DSCP) == 0 {
		return
	}
	for _, m := range e.Marks {
		mask, value := word(m.Mask), word(m.Value)
		rule(chainForward, "", masked(meta(expr.MetaKeyMARK), mask, expr.CmpOpEq, value), goTo(chainRemember))
		rule(chainForward, "", masked(ct(expr.CtKeyMARK), mask, expr.CmpOpEq, value), ret())
	}
	for _, dscp := range e.DSCP {
		rule(chainForward, "", dscpIs(desired.IPv4, dscp), goTo(chainRemember))
		rule(chainForward, "", dscpIs(desired.IPv6, dscp), goTo(chainRemember))
	}
	rule(chainRemember, "", remember(remembered, rememberFor))
	rule(chainForward, "", ct(ctKeyID), in(remembered), ret())
}

// remember adds the packet's connection to a set, or renews its time there.
func remember(set *nfnl.Set, d time.Duration) []expr.Any {
	const dynsetUpdate = 1 // NFT_DYNSET_OP_UPDATE
	return append(ct(ctKeyID), &expr.Dynset{SetName: set.Name, Operation: dynsetUpdate, SrcRegKey: regKey, Timeout: d})
}

// byAddress writes the rules for addresses, of pods as well.
func (e *Exclude) byAddress(rule writeRule) {
	for i := range families {
		f := &families[i]
		for _, direction := range []uint8{nfnl.Original, nfnl.Reply} {
			source := []expr.Any{nfnl.CtSource.Load(f.Family, direction, regKey)}
			rule(chainOffload, "", source, in(f.pods), ret())
			if len(e.Addresses) > 0 {
				rule(chainOffload, "", source, in(f.excluded), ret())
			}
		}
	}
}

// dscpIs matches packets of a family with a DSCP value.
func dscpIs(f desired.Family, dscp uint8) []expr.Any {
	nfproto, at, mask, value := byte(unix.NFPROTO_IPV4), uint32(1), []byte{0xfc}, []byte{dscp << 2}
	if f == desired.IPv6 { // in the middle of the first two bytes
		nfproto, at, mask, value = unix.NFPROTO_IPV6, 0, []byte{0x0f, 0xc0}, binary.BigEndian.AppendUint16(nil, uint16(dscp)<<6)
	}
	load := &expr.Payload{DestRegister: regKey, Base: expr.PayloadBaseNetworkHeader, Offset: at, Len: uint32(len(mask))}
	return masked(append(is(meta(expr.MetaKeyNFPROTO), nfproto), load), mask, expr.CmpOpEq, value)
}
