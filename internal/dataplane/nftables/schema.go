// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"encoding/binary"
	"hash/fnv"
	"net/netip"
	"slices"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
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

	sides [scopes]side // by desired.Scope

	pools               *nfnl.Set // what to draw below, of pools of both sides
	external            *nfnl.Set // frontends that are no ClusterIPs
	clusterIPs          *nfnl.Set
	serviceCIDRs        *nfnl.Set
	hairpin             *nfnl.Set
	restricted, sources *nfnl.Set // frontends for which it matters who connects, and who may
	sticky              *nfnl.Set // frontends with session affinity
	affinity, members   *nfnl.Set // which client has which backend, and which backends there are
	remember            *nfnl.Set // for how long
}

const scopes = 2

// side is what there is twice: for pools of the Cluster scope and of the Local
// scope. A frontend can have one of each.
type side struct {
	prefix                      string // of the names of sets and chains
	frontends, endpoints, picks *nfnl.Set
}

var schemas = [...]schema{
	desired.IPv4: newSchema(nfnl.IPv4, 4, 12, 16, nfnl.TypeIPAddr),
	desired.IPv6: newSchema(nfnl.IPv6, 16, 8, 24, nfnl.TypeIP6Addr),
}

// affinities is how many clients' backends are remembered at the most, for each
// family and over all Services. Further clients are served without affinity. The
// kernel allocates 16 bytes for each of these at the start.
const affinities = 1 << 18

func newSchema(f nfnl.Family, addrLen, saddr, daddr uint32, addr nfnl.DataType) schema {
	const word = 4
	frontendType := nfnl.Concat(addr, nfnl.TypeInetProto, nfnl.TypeInetService)
	frontendLen := addrLen + 2*word
	newSide := func(prefix string) side {
		return side{
			prefix: prefix,
			frontends: &nfnl.Set{
				Name:    prefix + "frontends",
				KeyType: frontendType, KeyLen: frontendLen,
				DataType: nfnl.Concat(nfnl.TypeMark, nfnl.TypeMark), DataLen: 2 * word,
			},
			picks: &nfnl.Set{
				Name:    prefix + "picks",
				KeyType: nfnl.TypeMark, KeyLen: word, HostOrder: true,
				DataType: nfnl.TypeVerdict,
			},
			endpoints: &nfnl.Set{
				Name:    prefix + "endpoints",
				KeyType: nfnl.Concat(nfnl.TypeMark, nfnl.TypeMark), KeyLen: 2 * word,
				DataType: nfnl.Concat(addr, nfnl.TypeInetService), DataLen: addrLen + word,
			},
		}
	}
	return schema{
		table:   nfnl.Table{Family: f, Name: tableName},
		addrLen: addrLen,
		saddr:   saddr,
		daddr:   daddr,
		sides:   [scopes]side{desired.Cluster: newSide(""), desired.Local: newSide("local-")},
		pools: &nfnl.Set{
			Name:    "pools",
			KeyType: nfnl.TypeMark, KeyLen: word, HostOrder: true,
			DataType: nfnl.Concat(nfnl.TypeMark, nfnl.TypeMark), DataLen: 2 * word,
		},
		external:     &nfnl.Set{Name: "external", KeyType: frontendType, KeyLen: frontendLen},
		clusterIPs:   &nfnl.Set{Name: "cluster-ips", KeyType: addr, KeyLen: addrLen},
		serviceCIDRs: &nfnl.Set{Name: "service-cidrs", KeyType: addr, KeyLen: addrLen, Flags: unix.NFT_SET_INTERVAL},
		hairpin:      &nfnl.Set{Name: "hairpin", KeyType: nfnl.Concat(addr, addr), KeyLen: 2 * addrLen},
		restricted:   &nfnl.Set{Name: "restricted", KeyType: frontendType, KeyLen: frontendLen},
		sources: &nfnl.Set{
			// One long number rather than a concatenation, for which the
			// kernel has another kind of set, copied as a whole with
			// every change (nft_set_pipapo).
			Name:    "sources",
			KeyType: nfnl.TypeInteger, KeyLen: frontendLen + addrLen, Flags: unix.NFT_SET_INTERVAL,
		},
		sticky: &nfnl.Set{
			Name:    "sticky",
			KeyType: frontendType, KeyLen: frontendLen,
			DataType: nfnl.Concat(nfnl.TypeMark, nfnl.TypeMark, nfnl.TypeMark, nfnl.TypeMark), DataLen: 4 * word,
		},
		affinity: &nfnl.Set{
			Name:    "affinity",
			KeyType: nfnl.Concat(nfnl.TypeMark, nfnl.TypeMark, addr), KeyLen: 2*word + addrLen,
			DataType: nfnl.Concat(nfnl.TypeMark, addr, nfnl.TypeInetService), DataLen: word + addrLen + word,
			Flags: unix.NFT_SET_TIMEOUT | unix.NFT_SET_EVAL, Size: affinities,
		},
		members: &nfnl.Set{
			Name:    "members",
			KeyType: nfnl.Concat(nfnl.TypeMark, addr, nfnl.TypeInetService), KeyLen: word + addrLen + word,
		},
		remember: &nfnl.Set{
			Name:    "remember",
			KeyType: nfnl.TypeMark, KeyLen: word, HostOrder: true,
			DataType: nfnl.TypeVerdict,
		},
	}
}

// sets are all sets and maps.
func (s *schema) sets() []*nfnl.Set { return append(s.programmed(), s.affinity) }

// programmed are the sets and maps whose elements are ours; the other's are the
// rules' own.
func (s *schema) programmed() []*nfnl.Set {
	all := []*nfnl.Set{
		s.pools, s.external, s.clusterIPs, s.serviceCIDRs, s.hairpin,
		s.restricted, s.sources, s.sticky, s.members, s.remember,
	}
	for i := range s.sides {
		all = append(all, s.sides[i].frontends, s.sides[i].endpoints, s.sides[i].picks)
	}
	return all
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

// affinityID is a number for a Service port that all its frontends share and that
// stays the same from run to run: 64 bits of a hash of its name. Upstream, too,
// remembers clients by Service port.
func affinityID(p desired.ServicePort, proto desired.Protocol) uint64 {
	hash := fnv.New64a()
	for _, part := range []string{p.Namespace, p.Name, p.Port, proto.String()} {
		hash.Write([]byte(part))
		hash.Write([]byte{0})
	}
	return hash.Sum64()
}

// stickyValue is what sticky says of a frontend: its affinity ID and timeout.
func stickyValue(b []byte, f *desired.Frontend) []byte {
	b = binary.NativeEndian.AppendUint64(number(b, 0), affinityID(f.Service, f.Protocol))
	return number(b, f.Affinity)
}

// memberKey says that a backend is in a pool.
func (s *schema) memberKey(b []byte, pool uint32, e desired.Backend) []byte {
	return s.endpointValue(number(b, pool), e)
}

// rangeOf are the first and the last address of a range.
func (s *schema) rangeOf(p netip.Prefix) (first, last []byte) {
	first = p.Masked().Addr().AsSlice()
	last = slices.Clone(first)
	for i := p.Bits(); i < len(last)*8; i++ {
		last[i/8] |= 0x80 >> (i % 8)
	}
	return first, last
}

// decodeFrontendKey is the inverse of frontendKey, for messages.
func (s *schema) decodeFrontendKey(k []byte) (f desired.FrontendKey, ok bool) {
	if len(k) < int(s.addrLen)+2*4 {
		return f, false
	}
	ip, _ := netip.AddrFromSlice(k[:s.addrLen])
	k = k[s.addrLen:]
	return desired.FrontendKey{
		AddrPort: netip.AddrPortFrom(ip, binary.BigEndian.Uint16(k[4:])),
		Protocol: desired.Protocol(k[0]),
	}, true
}

// schemaOf is the schema for an address.
func schemaOf(a netip.Addr) *schema { return &schemas[desired.FamilyOf(a)] }

// family is the schema's family.
func (s *schema) family() desired.Family {
	if s.table.Family == nfnl.IPv4 {
		return desired.IPv4
	}
	return desired.IPv6
}

// nfproto is the schema's family in the kernel's numbers.
func (s *schema) nfproto() uint32 {
	if s.table.Family == nfnl.IPv4 {
		return unix.NFPROTO_IPV4
	}
	return unix.NFPROTO_IPV6
}
