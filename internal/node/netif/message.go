// SPDX-License-Identifier: Apache-2.0

package netif

import (
	"encoding/binary"
	"net/netip"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// unspecific is the type of interfaces that are not virtual.
const unspecific = "device"

// parseLink parses RTM_NEWLINK and RTM_DELLINK (rtnetlink(7)). ok is false for messages
// about an interface as a bridge's port, and for invalid ones.
func parseLink(data []byte) (i Interface, ok bool) {
	if len(data) < unix.SizeofIfInfomsg || data[0] != unix.AF_UNSPEC {
		return i, false
	}
	i.Index = int(int32(binary.NativeEndian.Uint32(data[4:])))
	flags := binary.NativeEndian.Uint32(data[8:])
	i.Up, i.Loopback, i.Type = flags&unix.IFF_UP != 0, flags&unix.IFF_LOOPBACK != 0, unspecific
	a, err := netlink.NewAttributeDecoder(data[unix.SizeofIfInfomsg:])
	if err != nil {
		return i, false
	}
	for a.Next() {
		switch a.Type() {
		case unix.IFLA_IFNAME:
			i.Name = a.String()
		case unix.IFLA_MTU:
			i.MTU = int(a.Uint32())
		case unix.IFLA_LINKINFO:
			a.Nested(func(a *netlink.AttributeDecoder) error {
				for a.Next() {
					switch a.Type() {
					case unix.IFLA_INFO_KIND:
						i.Type = a.String()
					case unix.IFLA_INFO_SLAVE_KIND:
						i.PortOf = a.String()
					}
				}
				return nil
			})
		}
	}
	return i, a.Err() == nil && i.Name != ""
}

// address identifies an address of an interface, which can have the same local address with
// several prefixes or peers.
type address struct {
	local, peer netip.Addr // the same where there is no peer
	bits        uint8
}

// parseAddress parses RTM_NEWADDR and RTM_DELADDR. An address is usable if the kernel answers
// on it, even if it is deprecated.
func parseAddress(data []byte) (index int, addr address, usable, ok bool) {
	if len(data) < unix.SizeofIfAddrmsg {
		return 0, addr, false, false
	}
	addr.bits = data[1]
	flags := uint32(data[2])
	index = int(binary.NativeEndian.Uint32(data[4:]))
	a, err := netlink.NewAttributeDecoder(data[unix.SizeofIfAddrmsg:])
	if err != nil {
		return 0, addr, false, false
	}
	for a.Next() {
		switch a.Type() {
		case unix.IFA_LOCAL: // of IPv4, and of IPv6 with a peer
			addr.local, _ = netip.AddrFromSlice(a.Bytes())
		case unix.IFA_ADDRESS:
			addr.peer, _ = netip.AddrFromSlice(a.Bytes())
		case unix.IFA_FLAGS: // all of them; the header has the first eight
			flags = a.Uint32()
		}
	}
	if !addr.local.IsValid() {
		addr.local = addr.peer
	}
	tentative := flags&unix.IFA_F_TENTATIVE != 0 && flags&unix.IFA_F_OPTIMISTIC == 0
	usable = !tentative && flags&unix.IFA_F_DADFAILED == 0
	return index, addr, usable, addr.local.IsValid() && a.Err() == nil
}
