// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/bits"
	"net/netip"
	"strings"

	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// treeKey is what a tree is ordered by, as a string of bits: an address in 16 bytes,
// a protocol's code, and a port. A tree of addresses has zeros for the last two.
type treeKey [19]byte

const (
	addrBits  = 128
	protoBits = addrBits + 8 // of which the last two matter
	v4Bits    = addrBits - 32
)

// protocols by their codes: the first bit tells SCTP from the others, the second UDP
// from TCP.
var protocols = [...]desired.Protocol{0: desired.TCP, 1: desired.UDP, 2: desired.SCTP}

func frontendTreeKey(f desired.FrontendKey) (k treeKey) {
	k = addrTreeKey(f.Addr())
	for code, p := range protocols {
		if p == f.Protocol {
			k[16] = byte(code)
		}
	}
	binary.BigEndian.PutUint16(k[17:], f.Port())
	return k
}

func addrTreeKey(a netip.Addr) (k treeKey) {
	ip := a.As16()
	copy(k[:], ip[:])
	return k
}

func (k treeKey) compare(l treeKey) int { return bytes.Compare(k[:], l[:]) }

func (k treeKey) addr() netip.Addr { return netip.AddrFrom16([16]byte(k[:16])).Unmap() }

// bit is the bit at a position, from the front.
func (k treeKey) bit(i int) bool { return k[i/8]&(0x80>>(i%8)) != 0 }

// upTo is the key's first bits, and zeros or ones after them.
func (k treeKey) upTo(n int, ones bool) treeKey {
	for i := n / 8; i < len(k); i++ {
		mask := byte(0xff)
		if i == n/8 {
			mask >>= n % 8
		}
		if ones {
			k[i] |= mask
		} else {
			k[i] &^= mask
		}
	}
	return k
}

// firstDifference is the first bit in which two keys differ.
func firstDifference(a, b treeKey) int {
	for i := range a {
		if x := a[i] ^ b[i]; x != 0 {
			return i*8 + bits.LeadingZeros8(x)
		}
	}
	return len(a) * 8
}

// test matches packets whose key has the same first bits as k. Direction is "-d" or "-s".
func (k treeKey) test(n int, direction string) string {
	first := k.upTo(n, false)
	addr, bits := first.addr(), min(n, addrBits)
	if addr.Is4() {
		bits -= v4Bits
	}
	match := fmt.Sprintf("%s %s/%d", direction, addr, bits)
	switch {
	case n <= addrBits:
		return match
	case n <= protoBits:
		return match + " -p " + protocolName(k.protocol())
	}
	return fmt.Sprintf("%s %s --dport %d:%d", match, matchProtocol(k.protocol()), first.port(), k.upTo(n, true).port())
}

func (k treeKey) protocol() desired.Protocol { return protocols[k[16]] }

func (k treeKey) port() uint16 { return binary.BigEndian.Uint16(k[17:]) }

// protocolName is the protocol as iptables writes it.
func protocolName(p desired.Protocol) string { return strings.ToLower(p.String()) }

// matchProtocol begins a match of ports.
func matchProtocol(p desired.Protocol) string {
	name := protocolName(p)
	return "-p " + name + " -m " + name
}

// matchFrontend matches packets to a frontend.
func matchFrontend(f desired.FrontendKey) string {
	return fmt.Sprintf("-d %s/%d %s --dport %d", f.Addr(), f.Addr().BitLen(), matchProtocol(f.Protocol), f.Port())
}
