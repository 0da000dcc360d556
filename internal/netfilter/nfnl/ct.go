// SPDX-License-Identifier: Apache-2.0

package nfnl

import (
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Conntrack keys that packages unix and expr lack (enum nft_ct_keys).
const (
	ctDstIP  = 20 // NFT_CT_DST_IP
	ctDstIP6 = 22 // NFT_CT_DST_IP6
)

// ctOriginalDaddr is the expression that CtOriginalDaddr describes. It has an
// encoding of its own; the embedded one makes it an expression.
type ctOriginalDaddr struct {
	*expr.Ct
	key, register uint32
}

// CtOriginalDaddr loads the address that the connection's first packet was sent
// to, before any DNAT (Linux 4.17). expr.Ct can only ask for it by an older key,
// on which nft up to at least 1.0.6 aborts when it is part of a concatenation.
func CtOriginalDaddr(f Family, register uint32) expr.Any {
	key := uint32(ctDstIP)
	if f == IPv6 {
		key = ctDstIP6
	}
	return ctOriginalDaddr{&expr.Ct{}, key, register}
}

func (e ctOriginalDaddr) encode() []byte {
	var a attrs
	a.string(unix.NFTA_EXPR_NAME, "ct")
	data := a.open(unix.NFTA_EXPR_DATA)
	a.be32(unix.NFTA_CT_KEY, e.key)
	a.be32(unix.NFTA_CT_DREG, e.register)
	a.bytes(unix.NFTA_CT_DIRECTION, []byte{0}) // IP_CT_DIR_ORIGINAL
	a.close(data)
	return a
}

// encode is an expression as the kernel wants it.
func encode(f Family, e expr.Any) ([]byte, error) {
	if own, ok := e.(interface{ encode() []byte }); ok {
		return own.encode(), nil
	}
	return expr.Marshal(byte(f), e)
}
