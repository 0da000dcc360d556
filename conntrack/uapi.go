// SPDX-License-Identifier: Apache-2.0

package conntrack

import "golang.org/x/sys/unix"

// Message types of the subsystem (enum cntl_msg_types).
const (
	msgNew    = unix.NFNL_SUBSYS_CTNETLINK << 8
	msgGet    = unix.NFNL_SUBSYS_CTNETLINK<<8 | 1
	msgDelete = unix.NFNL_SUBSYS_CTNETLINK<<8 | 2
)

// Attributes of an entry (enum ctattr_type).
const (
	ctaTupleOrig  = 1
	ctaTupleReply = 2
	ctaTimeout    = 7
	ctaID         = 12
	ctaZone       = 18
	ctaFilter     = 25 // Linux 5.8
)

// Attributes of a tuple (enum ctattr_tuple, ctattr_ip and ctattr_l4proto).
const (
	ctaTupleIP    = 1
	ctaTupleProto = 2

	ctaIPv4Src = 1
	ctaIPv4Dst = 2
	ctaIPv6Src = 3
	ctaIPv6Dst = 4

	ctaProtoNum     = 1
	ctaProtoSrcPort = 2
	ctaProtoDstPort = 3
)

// Attributes of a filter (enum ctattr_filter): which parts of the tuples in a
// request count, a bit each. The bits are in net/netfilter/nf_internals.h, which
// is not among the kernel's exported headers, but the numbers are part of the
// interface all the same: libnetfilter_conntrack has them too.
const (
	ctaFilterOrigFlags  = 1
	ctaFilterReplyFlags = 2

	filterIPSrc   = 1 << 0
	filterIPDst   = 1 << 1
	filterProto   = 1 << 3
	filterSrcPort = 1 << 4
	filterDstPort = 1 << 5
)
