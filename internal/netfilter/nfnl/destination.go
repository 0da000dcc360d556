// SPDX-License-Identifier: Apache-2.0

package nfnl

import (
	"encoding/binary"
	"net/netip"
)

// DestinationSet returns a set of destinations: addresses with protocol and port.
func DestinationSet(f Family, name string) *Set {
	const words = 8 // of protocol and port
	return &Set{Name: name, KeyType: Concat(f.AddrType(), TypeInetProto, TypeInetService), KeyLen: f.AddrLen() + words}
}

// AppendDestination appends the key of a destination.
func AppendDestination(b []byte, protocol uint8, a netip.AddrPort) []byte {
	ip := a.Addr().As16()
	b = append(b, ip[16-a.Addr().BitLen()/8:]...)
	b = append(b, protocol, 0, 0, 0)
	return append(binary.BigEndian.AppendUint16(b, a.Port()), 0, 0)
}

// ParseDestination is the inverse of AppendDestination. It ignores what follows the key of a
// destination with addresses of the family.
func ParseDestination(f Family, b []byte) (protocol uint8, a netip.AddrPort, ok bool) {
	n := int(f.AddrLen())
	if len(b) < n+6 {
		return 0, a, false
	}
	ip, _ := netip.AddrFromSlice(b[:n])
	return b[n], netip.AddrPortFrom(ip, binary.BigEndian.Uint16(b[n+4:])), true
}
