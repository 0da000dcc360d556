// SPDX-License-Identifier: Apache-2.0

package nfnl

import (
	"encoding/binary"
	"iter"

	"golang.org/x/sys/unix"
)

// Sizes of the fixed headers, in bytes.
const (
	nlmsgHeaderLen  = unix.SizeofNlMsghdr // struct nlmsghdr
	nfgenHeaderLen  = 4                   // struct nfgenmsg: family, version, resource id
	nfgenResourceAt = 2                   // in nfgenmsg
	attrHeaderLen   = unix.SizeofNlAttr   // struct nlattr: length, type
)

// attrs appends netlink attributes to a buffer.
type attrs []byte

// message appends the headers of a netfilter message. The caller sets its length, and the Conn its sequence number.
func (a *attrs) message(typ, flags uint16, family uint8, resource uint16) {
	*a = binary.NativeEndian.AppendUint32(*a, 0)
	*a = binary.NativeEndian.AppendUint16(*a, typ)
	*a = binary.NativeEndian.AppendUint16(*a, flags|unix.NLM_F_REQUEST)
	*a = binary.NativeEndian.AppendUint32(*a, 0)
	*a = binary.NativeEndian.AppendUint32(*a, 0) // port ID: set by the kernel
	*a = append(*a, family, unix.NFNETLINK_V0)
	*a = binary.BigEndian.AppendUint16(*a, resource)
}

// Offsets in a message's header.
const (
	flagsAt = 6
	seqAt   = 8
)

// header appends the header of an attribute with a payload of n bytes.
func (a *attrs) header(typ uint16, n int) {
	*a = binary.NativeEndian.AppendUint16(*a, uint16(attrHeaderLen+n))
	*a = binary.NativeEndian.AppendUint16(*a, typ)
}

func (a *attrs) pad() {
	for len(*a)%4 != 0 {
		*a = append(*a, 0)
	}
}

func (a *attrs) bytes(typ uint16, payload []byte) {
	a.header(typ, len(payload))
	*a = append(*a, payload...)
	a.pad()
}

// string appends a NUL-terminated string.
func (a *attrs) string(typ uint16, s string) {
	a.header(typ, len(s)+1)
	*a = append(*a, s...)
	*a = append(*a, 0)
	a.pad()
}

// comment appends user data with a comment, unless it is empty.
func (a *attrs) comment(typ uint16, s string) {
	if s == "" {
		return
	}
	s = s[:min(len(s), MaxComment)]
	a.header(typ, 2+len(s)+1)
	*a = append(*a, udataComment, byte(len(s)+1))
	*a = append(*a, s...)
	*a = append(*a, 0)
	a.pad()
}

// be32 appends a number in network byte order, which nf_tables uses for all numbers.
func (a *attrs) be32(typ uint16, v uint32) {
	a.header(typ, 4)
	*a = binary.BigEndian.AppendUint32(*a, v)
}

// open starts a nested attribute and returns its offset, for close.
func (a *attrs) open(typ uint16) int {
	at := len(*a)
	a.header(typ|unix.NLA_F_NESTED, 0)
	return at
}

// close ends the nested attribute at an offset.
func (a *attrs) close(at int) {
	binary.NativeEndian.PutUint16((*a)[at:], uint16(len(*a)-at))
}

// Attributes walks netlink attributes in place. A truncated attribute ends the walk: the kernel sends none.
func Attributes(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(typ uint16, payload []byte) bool) {
		for len(b) >= attrHeaderLen {
			n := int(binary.NativeEndian.Uint16(b))
			typ := binary.NativeEndian.Uint16(b[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
			if n < attrHeaderLen || n > len(b) || !yield(typ, b[attrHeaderLen:n]) {
				return
			}
			b = b[min((n+3)&^3, len(b)):] // netlink's alignment is 4 bytes
		}
	}
}

// Attr returns the payload of the first attribute of a type, or nil.
func Attr(b []byte, want uint16) []byte {
	for typ, payload := range Attributes(b) {
		if typ == want {
			return payload
		}
	}
	return nil
}

// Num returns the number in an attribute of a type, and Text the text; 0 and "" without one.
func Num(b []byte, typ uint16) uint32  { return be32(Attr(b, typ)) }
func Text(b []byte, typ uint16) string { return cString(Attr(b, typ)) }

// cString returns the text of a NUL-terminated attribute.
func cString(b []byte) string { return unix.ByteSliceToString(b) }

func be32(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}

func be64(b []byte) uint64 {
	if len(b) < 8 {
		return 0
	}
	return binary.BigEndian.Uint64(b)
}

// Attributes of a table that package unix lacks.
const (
	nftaTableHandle   = 4 // NFTA_TABLE_HANDLE
	nftaTableUserdata = 6 // NFTA_TABLE_USERDATA, Linux 5.9

	tableDormant = 1 // NFT_TABLE_F_DORMANT
	tableOwner   = 2 // NFT_TABLE_F_OWNER
)
