// SPDX-License-Identifier: Apache-2.0

package iface

import (
	"encoding/binary"
	"net/netip"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// unspecific is the type of an interface that is not virtual.
const unspecific = "device"

// parseLink reads RTM_NEWLINK and RTM_DELLINK (rtnetlink(7)). ok is false for
// messages that are about an interface as a bridge's port, and for what is none.
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

// parseAddress reads RTM_NEWADDR and RTM_DELADDR. The address is the interface's
// own, not the other end's of a point-to-point link.
func parseAddress(data []byte) (index int, addr netip.Addr, ok bool) {
	if len(data) < unix.SizeofIfAddrmsg {
		return 0, addr, false
	}
	index = int(binary.NativeEndian.Uint32(data[4:]))
	a, err := netlink.NewAttributeDecoder(data[unix.SizeofIfAddrmsg:])
	if err != nil {
		return 0, addr, false
	}
	local := false
	for a.Next() {
		switch a.Type() {
		case unix.IFA_LOCAL:
			local = true
		case unix.IFA_ADDRESS:
			if local {
				continue
			}
		default:
			continue
		}
		addr, ok = netip.AddrFromSlice(a.Bytes())
	}
	return index, addr, ok && a.Err() == nil
}
