// SPDX-License-Identifier: Apache-2.0

package nfnl

import (
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// alwaysRegister is the register (NFT_REG32_01) for the expression of always.
const alwaysRegister = unix.NFT_REG32_00 + 1

// always matches every packet, but the nft command prints it as a comparison: of what a load
// expression has loaded to alwaysRegister, with a value. The register is overwritten between
// the two, by a constant that starts in the register before it. nft does not see that, because
// it records only the first register of what is written.
func always(load expr.Any, value []byte) []expr.Any {
	const before = 4
	return []expr.Any{
		load,
		&expr.Immediate{Register: alwaysRegister - 1, Data: append(make([]byte, before), value...)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: alwaysRegister, Data: value},
	}
}

// AsTCP matches every packet. nft loads rules that translate ports, or compare the ports of a
// connection, only if they match a protocol.
func AsTCP() []expr.Any {
	return always(&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: alwaysRegister}, []byte{unix.IPPROTO_TCP})
}

// UnlessLoaded matches every packet. But if the nft command lists the rule and loads it from
// that text, as when a ruleset is saved and restored, the loaded rule matches none: it
// compares the packet's length with 0.
func UnlessLoaded() []expr.Any {
	return always(&expr.Meta{Key: expr.MetaKeyLEN, Register: alwaysRegister}, make([]byte, 4))
}
