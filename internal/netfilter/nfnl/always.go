// SPDX-License-Identifier: Apache-2.0

package nfnl

import (
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// AlwaysRegister is the register (NFT_REG32_01) for the expression of Always.
const AlwaysRegister = unix.NFT_REG32_00 + 1

// Always matches every packet, but the nft command prints it as a comparison: of what a load
// expression has loaded to AlwaysRegister, with a value. The register is overwritten between
// the two, by a constant that starts in the register before it. nft does not see that, because
// it records only the first register of what is written.
func Always(load expr.Any, value []byte) []expr.Any {
	const before = 4
	return []expr.Any{
		load,
		&expr.Immediate{Register: AlwaysRegister - 1, Data: append(make([]byte, before), value...)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: AlwaysRegister, Data: value},
	}
}

// AsTCP matches every packet. nft loads rules that translate ports, or compare the ports of a
// connection, only if they match a protocol.
func AsTCP() []expr.Any {
	return Always(&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: AlwaysRegister}, []byte{unix.IPPROTO_TCP})
}

// UnlessLoaded matches every packet. But if the nft command lists the rule and loads it from
// that text, as when a ruleset is saved and restored, the loaded rule matches none: it
// compares the packet's length with 0.
func UnlessLoaded() []expr.Any {
	return Always(&expr.Meta{Key: expr.MetaKeyLEN, Register: AlwaysRegister}, make([]byte, 4))
}
