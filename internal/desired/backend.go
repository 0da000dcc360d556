// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"bytes"
	"cmp"
	"net/netip"
)

// Backend is an endpoint's address and port. It is comparable, holds no
// pointer and takes 18 bytes: a node may know a million of them.
type Backend struct {
	ip   ipBytes
	port uint16
}

// NewBackend returns the backend at an address and port.
func NewBackend(ap netip.AddrPort) Backend {
	return Backend{ip: ap.Addr().As16(), port: ap.Port()}
}

// Addr is the backend's address. IPv4 addresses are not in their IPv4-mapped form.
func (b Backend) Addr() netip.Addr { return b.ip.addr() }

// Port is the backend's port number; 0 for an endpoint of a range, which has that of the connection.
func (b Backend) Port() uint16 { return b.port }

// As16 is the address in 16 bytes, an IPv4 one in its IPv4-mapped form. It does
// not convert, for dataplanes that encode many backends.
func (b Backend) As16() [16]byte { return b.ip }

// String is "10.0.1.5:8080" or "[fd00::5]:8080", or the address of an endpoint of a range.
func (b Backend) String() string {
	if b.port == 0 {
		return b.Addr().String()
	}
	return netip.AddrPortFrom(b.Addr(), b.port).String()
}

// Compare orders backends of a family by address, then by port.
func (b Backend) Compare(c Backend) int {
	return cmp.Or(bytes.Compare(b.ip[:], c.ip[:]), cmp.Compare(b.port, c.port))
}

// ipBytes is an address of either family in 16 bytes, IPv4 as IPv4-mapped.
type ipBytes [16]byte

func (i ipBytes) addr() netip.Addr { return netip.AddrFrom16(i).Unmap() }

// Family is an IP address family.
type Family uint8

// The address families.
const (
	IPv4 Family = iota
	IPv6
	families = 2
)

// String is "IPv4" or "IPv6".
func (f Family) String() string { return [...]string{"IPv4", "IPv6"}[f] }

// Families is a set of address families.
type Families [families]bool

// FamilyOf is the family of an address.
func FamilyOf(a netip.Addr) Family {
	if a.Unmap().Is4() {
		return IPv4
	}
	return IPv6
}
