// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"encoding/binary"
	"net/netip"

	"github.com/slipstream-proxy/slipstream/backend/nftables/nfnl"
	"github.com/slipstream-proxy/slipstream/desired"
	"golang.org/x/sys/unix"
)

// tableName is the name of our tables in both families.
const tableName = "slipstream"

// tableComment is the comment of our tables.
const tableComment = "slipstream Service proxy"

// schema is what depends on the address family.
type schema struct {
	table   nfnl.Table
	addrLen uint32 // bytes

	saddr, daddr uint32 // offsets in the network header, bytes

	frontends, pools, picks, endpoints *nfnl.Set
	clusterIPs, hairpin                *nfnl.Set
}

var schemas = [...]schema{
	desired.IPv4: newSchema(nfnl.IPv4, 4, 12, 16, nfnl.TypeIPAddr),
	desired.IPv6: newSchema(nfnl.IPv6, 16, 8, 24, nfnl.TypeIP6Addr),
}

func newSchema(f nfnl.Family, addrLen, saddr, daddr uint32, addr nfnl.DataType) schema {
	const word = 4
	return schema{
		table:   nfnl.Table{Family: f, Name: tableName},
		addrLen: addrLen,
		saddr:   saddr,
		daddr:   daddr,
		frontends: &nfnl.Set{
			Name:    "frontends",
			KeyType: nfnl.Concat(addr, nfnl.TypeInetProto, nfnl.TypeInetService), KeyLen: addrLen + 2*word,
			DataType: nfnl.Concat(nfnl.TypeMark, nfnl.TypeMark), DataLen: 2 * word,
		},
		pools: &nfnl.Set{
			Name:    "pools",
			KeyType: nfnl.TypeMark, KeyLen: word, HostOrder: true,
			DataType: nfnl.Concat(nfnl.TypeMark, nfnl.TypeMark), DataLen: 2 * word,
		},
		picks: &nfnl.Set{
			Name:    "picks",
			KeyType: nfnl.TypeMark, KeyLen: word, HostOrder: true,
			DataType: nfnl.TypeVerdict,
		},
		endpoints: &nfnl.Set{
			Name:    "endpoints",
			KeyType: nfnl.Concat(nfnl.TypeMark, nfnl.TypeMark), KeyLen: 2 * word,
			DataType: nfnl.Concat(addr, nfnl.TypeInetService), DataLen: addrLen + word,
		},
		clusterIPs: &nfnl.Set{Name: "cluster-ips", KeyType: addr, KeyLen: addrLen},
		hairpin:    &nfnl.Set{Name: "hairpin", KeyType: nfnl.Concat(addr, addr), KeyLen: 2 * addrLen},
	}
}

func (s *schema) sets() []*nfnl.Set {
	return []*nfnl.Set{s.frontends, s.pools, s.picks, s.endpoints, s.clusterIPs, s.hairpin}
}

// Keys and values are appended to a buffer that the caller uses again. Numbers
// of our own making are in host byte order, as registers are; what is compared
// with or written to packets is in network byte order.

// addr appends an address of the schema's family.
func (s *schema) addr(b []byte, ip [16]byte) []byte { return append(b, ip[16-s.addrLen:]...) }

func number(b []byte, n uint32) []byte { return binary.NativeEndian.AppendUint32(b, n) }

// firstNumber is the number that a key or value starts with.
func firstNumber(b []byte) uint32 { return binary.NativeEndian.Uint32(b) }

func port(b []byte, p uint16) []byte { return append(b, byte(p>>8), byte(p), 0, 0) }

func (s *schema) frontendKey(b []byte, k desired.FrontendKey) []byte {
	b = s.addr(b, k.Addr().As16())
	b = append(b, byte(k.Protocol), 0, 0, 0)
	return port(b, k.Port())
}

// secondWord is a value whose first word nothing uses (see the package's
// documentation).
func secondWord(b []byte, n uint32) []byte { return number(number(b, 0), n) }

func (s *schema) endpointValue(b []byte, e desired.Backend) []byte {
	return port(s.addr(b, e.As16()), e.Port())
}

// is says whether an address is of the schema's family.
func (s *schema) is(a netip.Addr) bool { return a.BitLen() == int(s.addrLen)*8 }

func (s *schema) hairpinKey(b []byte, a netip.Addr) []byte {
	return s.addr(s.addr(b, a.As16()), a.As16())
}

// decodeFrontendKey is the inverse of frontendKey, for messages.
func (s *schema) decodeFrontendKey(k []byte) (f desired.FrontendKey, ok bool) {
	if len(k) != int(s.frontends.KeyLen) {
		return f, false
	}
	ip, _ := netip.AddrFromSlice(k[:s.addrLen])
	k = k[s.addrLen:]
	return desired.FrontendKey{
		AddrPort: netip.AddrPortFrom(ip, binary.BigEndian.Uint16(k[4:])),
		Protocol: desired.Protocol(k[0]),
	}, true
}

// nfproto is the schema's family in the kernel's numbers.
func (s *schema) nfproto() uint32 {
	if s.table.Family == nfnl.IPv4 {
		return unix.NFPROTO_IPV4
	}
	return unix.NFPROTO_IPV6
}
