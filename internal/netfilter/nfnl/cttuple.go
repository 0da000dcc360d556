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
	ctSrcIP6 = 21 // NFT_CT_SRC_IP6
)

// ctSource is the expression that CtSource describes. expr.Ct would do but for
// the direction, of which it makes a 32-bit number where the kernel reads a byte.
type ctSource struct {
	*expr.Ct
	key, register uint32
	direction     uint8
}

// CtSource loads the source address of a connection's packets in one direction:
// in the original one the client's, in the other one that of who answers, after
// any DNAT (Linux 4.17). The rule ends for connections of the other family.
func CtSource(f Family, direction uint8, register uint32) expr.Any {
	key := uint32(ctSrcIP)
	if f == IPv6 {
		key = ctSrcIP6
	}
	return ctSource{&expr.Ct{}, key, register, direction}
}

func (e ctSource) encode() []byte {
	var a attrs
	a.string(unix.NFTA_EXPR_NAME, "ct")
	data := a.open(unix.NFTA_EXPR_DATA)
	a.be32(unix.NFTA_CT_KEY, e.key)
	a.be32(unix.NFTA_CT_DREG, e.register)
	a.bytes(unix.NFTA_CT_DIRECTION, []byte{e.direction})
	a.close(data)
	return a
}
