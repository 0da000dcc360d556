// SPDX-License-Identifier: Apache-2.0

package nfnl

import (
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// alwaysRegister is the register (NFT_REG32_01) for the expression of always.
const alwaysRegister = unix.NFT_REG32_00 + 1

// always matches every packet, but the nft command prints it as a comparison: of what a load expression has loaded to
// alwaysRegister, with a value. The register is overwritten between the two, by a constant that starts in the register
// before it. nft does not see that, because it records only the first register of what is written.
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

// UnlessLoaded matches every packet. But if the nft command lists the rule and loads it from that text, as when a
// ruleset is saved and restored, the loaded rule matches none: it compares the packet's length with 0.
func UnlessLoaded() []expr.Any {
	return always(&expr.Meta{Key: expr.MetaKeyLEN, Register: alwaysRegister}, make([]byte, 4))
}

// CountIn returns the expression that counts a packet in a named counter.
func CountIn(name string) []expr.Any {
	return []expr.Any{&expr.Objref{Type: unix.NFT_OBJECT_COUNTER, Name: name}}
}

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

// OriginalDestination loads the destination of the connection's first packet, before any DNAT (Linux 4.17), in the
// format of [AppendDestination]. The rule does not match connections of the other family. expr.Ct has only an older key
// for the address, on which the nft command aborts up to at least version 1.0.6 if it is part of a concatenation.
func OriginalDestination(f Family, register uint32) []expr.Any {
	next := register + f.AddrLen()/4
	return []expr.Any{
		CtDestination.Load(f, Original, register),
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: next},
		CtDestinationPort.Load(f, Original, next+1),
	}
}

// CtField is a field that a connection's packets have in one direction, before any translation: its keys for IPv4 and
// IPv6. The source is the client in the original direction, and the server, after any DNAT, in the reply direction.
type CtField struct{ ipv4, ipv6 expr.CtKey }

// The fields.
var (
	CtSource          = CtField{ctSrcIP, ctSrcIP6}
	CtDestination     = CtField{ctDstIP, ctDstIP6}
	CtSourcePort      = CtField{expr.CtKeyPROTOSRC, expr.CtKeyPROTOSRC}
	CtDestinationPort = CtField{expr.CtKeyPROTODST, expr.CtKeyPROTODST}
)

// Load loads the field (Linux 4.17). The rule does not match connections of the other family.
func (c CtField) Load(f Family, direction uint8, register uint32) expr.Any {
	key := c.ipv4
	if f == IPv6 {
		key = c.ipv6
	}
	return ctDirected{&expr.Ct{}, uint32(key), register, direction}
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
