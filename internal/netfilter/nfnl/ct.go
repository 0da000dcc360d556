// SPDX-License-Identifier: Apache-2.0

package nfnl

import (
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Directions of a connection (enum ip_conntrack_dir).
const (
	Original uint8 = 0
	Reply    uint8 = 1
)

// Conntrack keys that packages unix and expr lack (enum nft_ct_keys).
const (
	ctSrcIP  = 19 // NFT_CT_SRC_IP
	ctDstIP  = 20 // NFT_CT_DST_IP
	ctSrcIP6 = 21 // NFT_CT_SRC_IP6
	ctDstIP6 = 22 // NFT_CT_DST_IP6
)

// ctDirected loads a field of a connection in one direction. It is not an expr.Ct, which
// encodes the direction as a 32-bit number: the kernel reads a byte, and logs 'attribute type
// 3 has an invalid length'. The embedded expression only implements the interface.
type ctDirected struct {
	*expr.Ct
	key, register uint32
	direction     uint8
}

// OriginalDestination loads the destination of the connection's first packet, before any DNAT
// (Linux 4.17), in the format of [AppendDestination]. The rule does not match connections of
// the other family. expr.Ct has only an older key for the address, on which the nft command
// aborts up to at least version 1.0.6 if it is part of a concatenation.
func OriginalDestination(f Family, register uint32) []expr.Any {
	key := uint32(ctDstIP)
	if f == IPv6 {
		key = ctDstIP6
	}
	next := register + f.AddrLen()/4
	return []expr.Any{
		ctDirected{&expr.Ct{}, key, register, Original},
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: next},
		ctDirected{&expr.Ct{}, uint32(expr.CtKeyPROTODST), next + 1, Original},
	}
}

// CtSource loads the source address of a connection's packets in one direction: the client's
// address in the original direction, and the server's address, after any DNAT, in the reply
// direction (Linux 4.17). The rule does not match connections of the other family.
func CtSource(f Family, direction uint8, register uint32) expr.Any {
	key := uint32(ctSrcIP)
	if f == IPv6 {
		key = ctSrcIP6
	}
	return ctDirected{&expr.Ct{}, key, register, direction}
}

func (e ctDirected) encode() []byte {
	var a attrs
	a.string(unix.NFTA_EXPR_NAME, "ct")
	data := a.open(unix.NFTA_EXPR_DATA)
	a.be32(unix.NFTA_CT_KEY, e.key)
	a.be32(unix.NFTA_CT_DREG, e.register)
	a.bytes(unix.NFTA_CT_DIRECTION, []byte{e.direction})
	a.close(data)
	return a
}

// encode encodes an expression.
func encode(f Family, e expr.Any) ([]byte, error) {
	if own, ok := e.(interface{ encode() []byte }); ok {
		return own.encode(), nil
	}
	return expr.Marshal(byte(f), e)
}
