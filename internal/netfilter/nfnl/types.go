// SPDX-License-Identifier: Apache-2.0

package nfnl

import "golang.org/x/sys/unix"

// Family is the protocol family of a table (NFPROTO_*).
type Family uint8

// The families a table can have here.
const (
	IPv4 Family = unix.NFPROTO_IPV4 // nft: ip
	IPv6 Family = unix.NFPROTO_IPV6 // nft: ip6
	INET Family = unix.NFPROTO_INET // nft: inet, both of them
)

// String is the family's name in nft's language.
func (f Family) String() string {
	switch f {
	case IPv4:
		return "ip"
	case IPv6:
		return "ip6"
	case INET:
		return "inet"
	}
	return "family?"
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

// DataType is nft's number for a data type, used only so that nft prints
// elements in the right notation; the kernel looks at lengths alone.
type DataType uint32

// Data types, with the length in bytes that a field of it takes in a
// concatenation (fields are padded to 32-bit registers).
const (
	TypeInteger     DataType = 4  // any
	TypeIPAddr      DataType = 7  // 4
	TypeIP6Addr     DataType = 8  // 16
	TypeInetProto   DataType = 12 // 1, padded to 4
	TypeInetService DataType = 13 // 2, padded to 4
	TypeMark        DataType = 19 // 4, in host byte order
	TypeVerdict     DataType = unix.NFT_DATA_VERDICT
)

// typeBits is how many bits nft gives each type in a concatenation.
const typeBits = 6

// Concat is the type of a concatenation.
func Concat(types ...DataType) DataType {
	var all DataType
	for _, t := range types {
		all = all<<typeBits | t
	}
	return all
}

// Set is a set, or, with a DataType, a map.
type Set struct {
	Name     string
	KeyType  DataType
	KeyLen   uint32 // bytes
	DataType DataType
	DataLen  uint32 // bytes; 0 for a set, ignored for verdicts
	Flags    uint32 // NFT_SET_*, beside NFT_SET_MAP, which follows from the types

	// Size is the largest number of elements; 0 for no limit, except that
	// rules add no more than 65,535 to a set without one.
	Size uint32

	// HostOrder tells nft that a key that is a single number is in host
	// byte order, so that it prints it as it is meant.
	HostOrder bool
}

func (s *Set) isMap() bool { return s.DataType != 0 }
