// SPDX-License-Identifier: Apache-2.0

package nfnl

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Family is the protocol family of a table (NFPROTO_*).
type Family uint8

// The families of tables.
const (
	IPv4   Family = unix.NFPROTO_IPV4   // nft: ip
	IPv6   Family = unix.NFPROTO_IPV6   // nft: ip6
	INET   Family = unix.NFPROTO_INET   // nft: inet, for IPv4 and IPv6
	NetDev Family = unix.NFPROTO_NETDEV // nft: netdev, at interfaces
)

// String is the name of the family in the nft command.
func (f Family) String() string {
	switch f {
	case IPv4:
		return "ip"
	case IPv6:
		return "ip6"
	case INET:
		return "inet"
	case NetDev:
		return "netdev"
	case unix.NFPROTO_ARP:
		return "arp"
	case unix.NFPROTO_BRIDGE:
		return "bridge"
	}
	return "family?"
}

// AddrLen returns the length of an address of IPv4 or IPv6 in bytes.
func (f Family) AddrLen() uint32 {
	if f == IPv6 {
		return 16
	}
	return 4
}

// AddrType returns the type of an address of IPv4 or IPv6.
func (f Family) AddrType() DataType {
	if f == IPv6 {
		return TypeIP6Addr
	}
	return TypeIPAddr
}

// Table names a table.
type Table struct {
	Family Family
	Name   string
}

// Chain is a chain; one with a Hook is a base chain.
type Chain struct {
	Name string
	Hook *Hook
}

// Hook says where a base chain is attached.
type Hook struct {
	Type     string // "nat", "filter" or "route"
	Num      uint32 // NF_INET_PRE_ROUTING ...
	Priority int32  // lower runs first; dstnat is -100, srcnat 100
}

// DataType is the nft command's number for a data type, which determines how it prints
// elements. The kernel only uses lengths.
type DataType uint32

// Data types, with the length of a field in bytes. In a concatenation, fields are padded to 32-bit registers.
const (
	TypeInteger     DataType = 4  // any
	TypeIPAddr      DataType = 7  // 4
	TypeIP6Addr     DataType = 8  // 16
	TypeInetProto   DataType = 12 // 1, padded to 4
	TypeInetService DataType = 13 // 2, padded to 4
	TypeMark        DataType = 19 // 4, in host byte order
	TypeVerdict     DataType = unix.NFT_DATA_VERDICT
)

// typeBits is the number of bits of each type in the type of a concatenation.
const typeBits = 6

// Concat returns the type of a concatenation.
func Concat(types ...DataType) DataType {
	var all DataType
	for _, t := range types {
		all = all<<typeBits | t
	}
	return all
}

// Filled reports whether the bytes that fill fields of a concatenation up to registers are 0, as in packets' keys.
func (t DataType) Filled(b []byte) bool {
	for ; t != 0 && len(b) >= 4; t >>= typeBits {
		used, size := 4, 4
		switch t & (1<<typeBits - 1) {
		case TypeInetProto:
			used = 1
		case TypeInetService:
			used = 2
		case TypeIP6Addr:
			size = 16
		}
		at := len(b) - size
		if at < 0 || binary.BigEndian.Uint32(b[at:])<<(8*used) != 0 {
			return false
		}
		b = b[:at]
	}
	return true
}

// Set is a set, or a map if it has a DataType.
type Set struct {
	Name     string
	KeyType  DataType
	KeyLen   uint32 // bytes
	DataType DataType
	DataLen  uint32 // bytes; 0 for a set, ignored for verdicts
	Flags    uint32 // NFT_SET_*; NFT_SET_MAP is added for maps

	// Size is the maximum number of elements; 0 for no limit, except that rules add
	// at most 65,535 elements to a set without a limit.
	Size uint32

	// HostOrder says that a key with a single number is in host byte order. It only
	// affects the output of the nft command.
	HostOrder bool

	// KeyTypeof and DataTypeof, if set, are what the nft command prints in place of the types. A map has both or none.
	KeyTypeof, DataTypeof Typeof
}

func (s *Set) isMap() bool { return s.DataType != 0 }

// DestinationSet returns a set of destinations: addresses with protocol and port.
func DestinationSet(f Family, name string) *Set {
	return &Set{Name: name, KeyType: Concat(f.AddrType(), TypeInetProto, TypeInetService), KeyLen: f.AddrLen() + portLen}
}

// PortSet returns a set of destinations at any address: protocols with ports.
func PortSet(name string) *Set {
	return &Set{Name: name, KeyType: Concat(TypeInetProto, TypeInetService), KeyLen: portLen}
}

const portLen = 8 // a protocol and a port, in bytes

// AppendDestination appends the key of a destination, which is in a PortSet if the address is unspecified.
func AppendDestination(b []byte, protocol uint8, a netip.AddrPort) []byte {
	if !a.Addr().IsUnspecified() {
		ip := a.Addr().As16()
		b = append(b, ip[16-a.Addr().BitLen()/8:]...)
	}
	return AppendPort(b, protocol, a.Port())
}

// AppendPort appends the key of a protocol and a port.
func AppendPort(b []byte, protocol uint8, port uint16) []byte {
	return append(binary.BigEndian.AppendUint16(append(b, protocol, 0, 0, 0), port), 0, 0)
}

// ParseDestination is the inverse of AppendDestination. It ignores what follows the key of a
// destination with addresses of the family.
func ParseDestination(f Family, b []byte) (protocol uint8, a netip.AddrPort, ok bool) {
	n := int(f.AddrLen())
	if len(b) == portLen {
		b = append(make([]byte, n), b...)
	}
	if len(b) < n+6 {
		return 0, a, false
	}
	ip, _ := netip.AddrFromSlice(b[:n])
	return b[n], netip.AddrPortFrom(ip, binary.BigEndian.Uint16(b[n+4:])), true
}
