// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"crypto/sha256"
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"golang.org/x/sys/unix"
)

// tableName is the name of the tables of both families.
const tableName = "slipstream"

// tableComment is the comment of the tables.
const tableComment = "slipstream Service proxy"

// schema describes the table of one address family.
type schema struct {
	table   nfnl.Table
	family  desired.Family
	addrLen uint32 // bytes

	saddr, daddr uint32 // offsets in the network header, bytes

	addressSets  [scopes]scopeSets // by desired.Scope
	nodePortSets [scopes]scopeSets // of NodePorts
	rangeSets    [scopes]scopeSets // of ranges of ports; only if ranged
	ranged       bool              // the table has what ranges need (ranges.go)

	pools               *nfnl.Set // upper bounds of random slots, for pools of both scopes
	external            *nfnl.Set // frontends that are not ClusterIPs
	clusterIPs          *nfnl.Set
	nodeAddresses       *nfnl.Set // that serve NodePorts
	serviceCIDRs        *nfnl.Set
	hairpin             *nfnl.Set
	loopback            *nfnl.Set // NodePorts that are refused at loopback addresses
	restricted, sources *nfnl.Set // frontends with source ranges, and the ranges
	affinity, members   *nfnl.Set // backends by client, and valid backends by pool
	ranges, partners    *nfnl.Set // see ranges.go
	newClients          *nfnl.Set // limits of new clients, by the numbers of Services in affinity IDs, and of their namespaces
	remember            *nfnl.Set // chains by timeout
	rejected            *nfnl.Set // counters of refused and dropped packets, by destination
}

const scopes = 2

// scopeSets are the sets that exist for pools of the Cluster scope and of the Local scope, of which a
// frontend can have one each; and twice in each scope: for NodePorts and for other frontends.
type scopeSets struct {
	scope            desired.Scope
	place            int    // in Dataplane.onDemand
	prefix           string // of the names of picks and of chains
	onNode           bool   // for NodePorts, whose keys are a protocol and a port
	inRange          bool   // for ranges of ports
	startSizes       []int  // sizes that have chains from the start
	frontends, picks *nfnl.Set
	pools            *nfnl.Set // shared with all others but those of ranges
	stickyPicks      *nfnl.Set // for clients with session affinity but without a backend
	endpoints        *nfnl.Set // shared with the sets for NodePorts
	sticky           *nfnl.Set // frontends with session affinity, in both scopes
}

// eachScopeSets yields the sets of each scope.
func (s *schema) eachScopeSets(yield func(*scopeSets) bool) {
	for i := range scopes {
		if !yield(&s.addressSets[i]) || !yield(&s.nodePortSets[i]) || s.ranged && !yield(&s.rangeSets[i]) {
			return
		}
	}
}

var schemas = [...]schema{
	desired.IPv4: newSchema(nfnl.IPv4, desired.IPv4, 12, nfnl.IPDaddr),
	desired.IPv6: newSchema(nfnl.IPv6, desired.IPv6, 8, nfnl.IP6Daddr),
}

// affinities is the maximum number of clients with session affinity, in each family and for all Services together.
// Further clients are served without affinity. The kernel allocates 16 bytes for each at the start.
const affinities = 1 << 18

func newSchema(f nfnl.Family, family desired.Family, saddr uint32, typeofAddr nfnl.Typeof) schema {
	const word = 4
	addr, addrLen := f.AddrType(), f.AddrLen()
	frontends := func(name string) *nfnl.Set { return nfnl.DestinationSet(f, name) }
	frontendLen := frontends("").KeyLen
	// valueOf makes a set a map with values of some words.
	valueOf := func(words int, s *nfnl.Set) *nfnl.Set {
		s.DataType, s.DataLen = nfnl.Concat(slices.Repeat([]nfnl.DataType{nfnl.TypeMark}, words)...), uint32(words)*word
		return s
	}
	sticky := valueOf(4, frontends("sticky"))
	nodePorts := nfnl.PortSet
	nodeSticky := valueOf(4, nodePorts("sticky-node-ports"))
	pools := valueOf(3, &nfnl.Set{Name: "pools", KeyType: nfnl.TypeMark, KeyLen: word, HostOrder: true})
	picks := func(name string) *nfnl.Set {
		return &nfnl.Set{Name: name, KeyType: nfnl.TypeMark, KeyLen: word, HostOrder: true, DataType: nfnl.TypeVerdict}
	}
	newScopeSets := func(scope desired.Scope, prefix string) (scopeSets, scopeSets) {
		endpoints := &nfnl.Set{
			Name:    prefix + "endpoints",
			KeyType: nfnl.Concat(nfnl.TypeMark, nfnl.TypeInteger), KeyLen: 2 * word,
			DataType: nfnl.Concat(addr, nfnl.TypeInetService), DataLen: addrLen + word,
			KeyTypeof:  nfnl.Concatenation(nfnl.MetaMark, nfnl.RandomNumber(maxSize)),
			DataTypeof: nfnl.Concatenation(typeofAddr, nfnl.TCPDport),
		}
		return scopeSets{
				scope: scope, place: int(scope), prefix: prefix, pools: pools, startSizes: startSizes,
				frontends: valueOf(2, frontends(prefix+"frontends")), sticky: sticky,
				picks: picks(prefix + "picks"), stickyPicks: picks(prefix + "sticky-picks"), endpoints: endpoints,
			}, scopeSets{
				scope: scope, place: int(scope), prefix: prefix + "node-", onNode: true, pools: pools, startSizes: startSizes,
				frontends: valueOf(2, nodePorts(prefix+"node-ports")), sticky: nodeSticky,
				picks: picks(prefix + "node-picks"), stickyPicks: picks(prefix + "node-sticky-picks"), endpoints: endpoints,
			}
	}
	cluster, node := newScopeSets(desired.Cluster, "")
	local, nodeLocal := newScopeSets(desired.Local, "local-")
	return schema{
		table:         nfnl.Table{Family: f, Name: tableName},
		family:        family,
		addrLen:       addrLen,
		saddr:         saddr,
		daddr:         saddr + addrLen,
		addressSets:   [scopes]scopeSets{desired.Cluster: cluster, desired.Local: local},
		nodePortSets:  [scopes]scopeSets{desired.Cluster: node, desired.Local: nodeLocal},
		pools:         pools,
		external:      frontends("external"),
		clusterIPs:    &nfnl.Set{Name: "cluster-ips", KeyType: addr, KeyLen: addrLen},
		nodeAddresses: &nfnl.Set{Name: "node-addresses", KeyType: addr, KeyLen: addrLen},
		serviceCIDRs:  &nfnl.Set{Name: "service-cidrs", KeyType: addr, KeyLen: addrLen, Flags: unix.NFT_SET_INTERVAL},
		hairpin:       &nfnl.Set{Name: "hairpin", KeyType: nfnl.Concat(addr, addr), KeyLen: 2 * addrLen},
		loopback:      nodePorts("loopback-ports"),
		restricted:    frontends("restricted"),
		sources: &nfnl.Set{
			// One long number instead of a concatenation: the kernel's set for concatenations with intervals is copied
			// as a whole with every change (nft_set_pipapo).
			Name:    "sources",
			KeyType: nfnl.TypeInteger, KeyLen: frontendLen + addrLen, Flags: unix.NFT_SET_INTERVAL,
			KeyTypeof: nfnl.NetworkHeader(frontendLen + addrLen),
		},
		affinity: &nfnl.Set{
			Name:    "affinity",
			KeyType: nfnl.Concat(nfnl.TypeMark, nfnl.TypeMark, addr), KeyLen: 2*word + addrLen,
			DataType: nfnl.Concat(nfnl.TypeMark, nfnl.TypeInetService, addr), DataLen: 2*word + addrLen,
			Flags: unix.NFT_SET_TIMEOUT | unix.NFT_SET_EVAL, Size: affinities,
		},
		newClients: &nfnl.Set{ // without a size, of which the kernel would allocate the hash table at once
			Name:    "new-clients",
			KeyType: nfnl.TypeMark, KeyLen: word, HostOrder: true,
			Flags: unix.NFT_SET_EVAL,
		},
		rejected: &nfnl.Set{ // without a size, as new-clients; only frontends are in it
			Name:    "rejected",
			KeyType: nfnl.Concat(nfnl.TypeInetProto, nfnl.TypeInetService, addr), KeyLen: 2*word + addrLen,
			Flags: unix.NFT_SET_EVAL,
		},
		members: &nfnl.Set{
			Name:    "members",
			KeyType: nfnl.Concat(nfnl.TypeMark, nfnl.TypeInetService, addr), KeyLen: 2*word + addrLen,
		},
		remember: &nfnl.Set{
			Name:    "remember",
			KeyType: nfnl.TypeMark, KeyLen: word, HostOrder: true,
			DataType: nfnl.TypeVerdict,
		},
	}
}

// sets lists all sets and maps. Those that change most often come first: with every message the
// kernel searches the set in a list.
func (s *schema) sets() []*nfnl.Set {
	cluster, local := &s.addressSets[desired.Cluster], &s.addressSets[desired.Local]
	all := []*nfnl.Set{
		cluster.endpoints, s.pools, cluster.frontends, s.clusterIPs, s.hairpin, local.endpoints, s.external,
		s.members, s.nodeAddresses, s.serviceCIDRs, s.loopback,
		s.restricted, s.sources, cluster.sticky, s.nodePortSets[0].sticky, s.affinity, s.newClients, s.remember, s.rejected,
	}
	if s.ranged {
		all = append(all, s.ranges, s.partners, s.rangeSets[0].pools, s.rangeSets[0].endpoints, s.rangeSets[1].endpoints)
	}
	for d := range s.eachScopeSets {
		if d != cluster && !d.inRange {
			all = append(all, d.frontends)
		}
		all = append(all, d.picks, d.stickyPicks)
	}
	return all
}

// owns reports whether a set of the table is one of ours, by its name. nft gives anonymous sets such names as __set0.
func (s *schema) owns(set *nfnl.Set) bool {
	return slices.ContainsFunc(s.sets(), func(own *nfnl.Set) bool { return own.Name == set.Name })
}

// Keys and values are appended to a buffer that the caller reuses. The proxy's numbers are in host byte order, like
// registers. Values from or for packets are in network byte order.

// addr appends an address of the schema's family.
func (s *schema) addr(b []byte, ip [16]byte) []byte { return append(b, ip[16-s.addrLen:]...) }

func number(b []byte, n uint32) []byte { return binary.NativeEndian.AppendUint32(b, n) }

// firstNumber decodes the number at the start of a key or value.
func firstNumber(b []byte) uint32 { return binary.NativeEndian.Uint32(b) }

func port(b []byte, p uint16) []byte { return append(b, byte(p>>8), byte(p), 0, 0) }

func (s *schema) frontendKey(b []byte, k desired.FrontendKey) []byte {
	protocol := uint8(k.Protocol)
	if k.IsRange() {
		protocol |= rangeFlag
	}
	return nfnl.AppendDestination(b, protocol, k.AddrPort)
}

// secondWord encodes a value with an unused first word (see the package's documentation).
func secondWord(b []byte, n uint32) []byte { return number(number(b, 0), n) }

func (s *schema) endpointValue(b []byte, e desired.Backend) []byte {
	return port(s.addr(b, e.As16()), e.Port())
}

// is reports whether an address is of the schema's family.
func (s *schema) is(a netip.Addr) bool { return a.BitLen() == int(s.addrLen)*8 }

// affinityID identifies a Service port, with all of its frontends, across runs, by two numbers: one that all ports of
// the Service share, with hashes of its namespace (namespaceBits) and its name, and a hash of the port. A Service shares
// its limit with all that have the same first number, and so does its namespace (see clients.go).
// kube-proxy, too, records clients by Service port. All ports of a Service with ranges have one ID.
func affinityID(p desired.ServicePort, proto desired.Protocol, shared bool) (service, port uint32) {
	hash := func(parts ...string) uint32 {
		sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
		return firstNumber(sum[:])
	}
	name := hash(p.Namespace, p.Name)
	service = hash(p.Namespace)&namespaceBits | max(name&^namespaceBits, 1)
	if shared {
		return service, name
	}
	return service, hash(p.Namespace, p.Name, p.Port, proto.String())
}

// memberKey encodes the key of a pool and a backend in members.
func (s *schema) memberKey(b []byte, pool uint32, e desired.Backend) []byte {
	return s.addr(port(number(b, pool), e.Port()), e.As16())
}

// decodeFrontendKey is the inverse of frontendKey, except for the last port of a range.
func (s *schema) decodeFrontendKey(k []byte) (f desired.FrontendKey, ok bool) {
	protocol, a, ok := nfnl.ParseDestination(s.table.Family, k)
	return desired.FrontendKey{AddrPort: a, Protocol: desired.Protocol(protocol)}, ok
}
