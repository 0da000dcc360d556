// SPDX-License-Identifier: Apache-2.0

// Package ctnetlink speaks netlink with the kernel's connection tracking
// (linux/netfilter/nfnetlink_conntrack.h).
package ctnetlink

import (
	"encoding/binary"
	"iter"

	"golang.org/x/sys/unix"
)

// Message types of the subsystem (enum cntl_msg_types).
const (
	MsgNew    = unix.NFNL_SUBSYS_CTNETLINK << 8
	MsgGet    = unix.NFNL_SUBSYS_CTNETLINK<<8 | 1
	MsgDelete = unix.NFNL_SUBSYS_CTNETLINK<<8 | 2
)

// Attributes of an entry (enum ctattr_type).
const (
	TupleOrig     = 1
	TupleReply    = 2
	Status        = 3
	Timeout       = 7
	CountersOrig  = 9
	CountersReply = 10
	ID            = 12
	Zone          = 18
	Timestamp     = 20
	Filter        = 25 // Linux 5.8
	StatusMask    = 26 // Linux 5.15
)

// Attributes of a tuple (enum ctattr_tuple, ctattr_ip and ctattr_l4proto).
const (
	TupleIP    = 1
	TupleProto = 2

	IPv4Src = 1
	IPv4Dst = 2
	IPv6Src = 3
	IPv6Dst = 4

	ProtoNum     = 1
	ProtoSrcPort = 2
	ProtoDstPort = 3
)

// Attributes of counters and of a timestamp (enum ctattr_counters, ctattr_tstamp).
const (
	CountersPackets = 1
	CountersBytes   = 2

	TimestampStart = 1
)

// Attributes of a filter (enum ctattr_filter): which parts of the tuples in a
// request count, a bit each. The bits are in net/netfilter/nf_internals.h, which
// is not among the kernel's exported headers, but the numbers are part of the
// interface all the same: libnetfilter_conntrack has them too.
const (
	FilterOrigFlags  = 1
	FilterReplyFlags = 2

	FilterIPSrc   = 1 << 0
	FilterIPDst   = 1 << 1
	FilterProto   = 1 << 3
	FilterSrcPort = 1 << 4
	FilterDstPort = 1 << 5
)

// Bits of an entry's status (enum ip_conntrack_status).
const (
	StatusDNAT      = 1 << 5
	StatusOffload   = 1 << 14
	StatusHWOffload = 1 << 15
)

// Attributes walks netlink attributes in place, as there may be a hundred
// thousand entries. A truncated attribute ends the walk: the kernel sends none.
func Attributes(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(typ uint16, payload []byte) bool) {
		for len(b) >= unix.SizeofNlAttr {
			n := int(binary.NativeEndian.Uint16(b))
			typ := binary.NativeEndian.Uint16(b[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
			if n < unix.SizeofNlAttr || n > len(b) || !yield(typ, b[unix.SizeofNlAttr:n]) {
				return
			}
			b = b[min((n+3)&^3, len(b)):]
		}
	}
}
