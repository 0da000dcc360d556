// SPDX-License-Identifier: Apache-2.0

package nfnl

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// Typeof describes the key or the values of a set by an expression, such as "ip daddr . numgen random mod 2", for types
// that have no name, or that a name does not describe completely. Only the nft command uses it: as user data of the
// set, in the format of libnftnl, with the numbers of expressions and header fields of nft. They are part of what
// different versions of nft have in common.
type Typeof string

const exprPayload = 7 // EXPR_PAYLOAD

// payload is a field of a header, by nft's numbers of both.
func payload(header, field uint32) Typeof {
	return typeof(exprPayload, udata32(0, header)+udata32(1, field))
}

// Fields of headers.
var (
	IPDaddr  = payload(12, 12)
	IP6Daddr = payload(13, 9)
	TCPDport = payload(8, 2)
)

// NetworkHeader is the first bytes of the network header, as a number.
func NetworkHeader(bytes uint32) Typeof {
	const base = 2 // PROTO_BASE_NETWORK_HDR
	return typeof(exprPayload, udata32(0, 0)+udata32(1, 0)+udata32(2, base)+udata32(3, 0)+udata32(4, 8*bytes))
}

// MetaMark is the packet's mark.
var MetaMark = typeof(9 /* EXPR_META */, udata32(0, unix.NFT_META_MARK))

// CtID is the ID of the packet's connection.
var CtID = typeof(12 /* EXPR_CT */, udata32(0, 23 /* NFT_CT_ID */)+udata32(1, ^uint32(0) /* no direction */))

// RandomNumber is a random number below a maximum.
func RandomNumber(below uint32) Typeof {
	const etype = 23 // EXPR_NUMGEN
	return typeof(etype, udata32(0, unix.NFT_NG_RANDOM)+udata32(1, below)+udata32(2, 0))
}

// Concatenation is several fields, each padded to 32-bit registers.
func Concatenation(fields ...Typeof) Typeof {
	const etype = 13 // EXPR_CONCAT
	var all Typeof
	for i, f := range fields {
		all += udata(byte(i), f)
	}
	return typeof(etype, all)
}

func typeof(etype uint32, data Typeof) Typeof { return udata32(0, etype) + udata(1, data) }

// udata is an attribute of user data: type, length and value.
func udata(typ byte, value Typeof) Typeof { return Typeof([]byte{typ, byte(len(value))}) + value }

func udata32(typ byte, value uint32) Typeof {
	return udata(typ, Typeof(binary.NativeEndian.AppendUint32(nil, value)))
}

// userdata is the set's user data (NFTNL_UDATA_SET_*).
func (s *Set) userdata() (all Typeof) {
	if s.HostOrder {
		all += udata32(0, 1) // KEYBYTEORDER: BYTEORDER_HOST_ENDIAN
	}
	if s.KeyTypeof != "" {
		all += udata(3, s.KeyTypeof)
	}
	if s.DataTypeof != "" {
		all += udata(4, s.DataTypeof)
	}
	return all
}
