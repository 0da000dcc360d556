// SPDX-License-Identifier: Apache-2.0

package fastpath

import (
	"net/netip"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/firewall"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"golang.org/x/sys/unix"
)

// TableName is the name of our table, of family inet.
const TableName = firewall.FastPathTable

const tableText = "table inet " + TableName // in messages

var table = nfnl.Table{Family: nfnl.INET, Name: TableName}

const tableComment = "slipstream fast path"

// Names of objects in the table.
const (
	flowtableName    = "flows"
	counterOffloaded = "offloaded"
	chainForward     = "forward"
	chainOffload     = "to-flowtable"
	chainRemember    = "exclude"
	chainAsk         = "ask" // of the engine EBPF
	chainUnjudged    = "unjudged"
	chainJudge       = "judge" // this and the next exist only while rules of others require them
	chainCandidates  = "candidates"
)

// flowtablePriority is nft's "filter", among hooks at ingress. nft can take a device from a flowtable of this one only.
const flowtablePriority = 0

// forwardPriority is after all chains of other programs: packets that they drop are not
// offloaded.
const forwardPriority = 1000

// chains are our chains, the base chain last.
var chains = chainsIn(unix.NF_INET_FORWARD)

// chainsForEBPF are the same, and one more: its engine needs packets after all NAT.
var chainsForEBPF = append([]nfnl.Chain{{Name: chainAsk}}, chainsIn(unix.NF_INET_POST_ROUTING)...)

func chainsIn(hook uint32) []nfnl.Chain {
	return []nfnl.Chain{
		{Name: chainOffload},
		{Name: chainRemember},
		{Name: chainUnjudged},
		{Name: chainForward, Hook: &nfnl.Hook{Type: "filter", Num: hook, Priority: forwardPriority}},
	}
}

// typeInterfaceName is nft's number for names of interfaces, of 16 bytes.
const typeInterfaceName nfnl.DataType = 41

// family is what depends on the address family.
type family struct {
	nfnl.Family
	name string // in those of sets and chains

	frontends     *nfnl.Set // of Services, except NodePorts
	nodePorts     *nfnl.Set // protocols and ports
	nodeAddresses *nfnl.Set // that serve NodePorts
	heldFrontends *nfnl.Set // connections to these stay on the slow path for a while
	heldAddresses *nfnl.Set // connections from or to these do
	excluded      *nfnl.Set // addresses of connections that always do, by configuration
	pods          *nfnl.Set // the same, of pods that opt out
}

// families are in the order of desired.Family.
var families = [...]family{
	desired.IPv4: newFamily(nfnl.IPv4, "ipv4"),
	desired.IPv6: newFamily(nfnl.IPv6, "ipv6"),
}

func newFamily(f nfnl.Family, name string) family {
	all := family{
		Family:        f,
		name:          name,
		frontends:     nfnl.DestinationSet(f, "frontends-"+name),
		nodePorts:     nfnl.PortSet("node-ports-" + name),
		nodeAddresses: &nfnl.Set{Name: "node-addresses-" + name, KeyType: f.AddrType(), KeyLen: f.AddrLen()},
		heldFrontends: nfnl.DestinationSet(f, "held-frontends-"+name),
		excluded:      &nfnl.Set{Name: "excluded-" + name, KeyType: f.AddrType(), KeyLen: f.AddrLen(), Flags: unix.NFT_SET_INTERVAL},
		heldAddresses: &nfnl.Set{Name: "held-addresses-" + name, KeyType: f.AddrType(), KeyLen: f.AddrLen(), Flags: unix.NFT_SET_TIMEOUT},
	}
	all.pods = &nfnl.Set{Name: "pods-" + name, KeyType: f.AddrType(), KeyLen: f.AddrLen()}
	all.heldFrontends.Flags = unix.NFT_SET_TIMEOUT
	return all
}

// interfaces is the set of the interfaces that take part.
var interfaces = &nfnl.Set{Name: "interfaces", KeyType: typeInterfaceName, KeyLen: unix.IFNAMSIZ, HostOrder: true}

// typeProtocolFamily is nft's number for address families, of one byte.
const typeProtocolFamily nfnl.DataType = 2

// heldFamilies are the families whose connections stay on the slow path for a while.
var heldFamilies = &nfnl.Set{Name: "held-families", KeyType: typeProtocolFamily, KeyLen: 1, Flags: unix.NFT_SET_TIMEOUT}

// sets returns all sets of the table.
func sets() []*nfnl.Set {
	all := []*nfnl.Set{interfaces, heldFamilies, remembered, passed[nfnl.Original], passed[nfnl.Reply]}
	for i := range families {
		f := &families[i]
		all = append(all, f.frontends, f.nodePorts, f.nodeAddresses, f.heldFrontends, f.heldAddresses, f.excluded, f.pods)
	}
	return all
}

// setOf returns the set of a frontend.
func setOf(k desired.FrontendKey) *nfnl.Set {
	if k.OnNode() {
		return familyOf(k.Addr()).nodePorts
	}
	return familyOf(k.Addr()).frontends
}

// frontendKey appends a frontend's key in the sets of its family.
func frontendKey(b []byte, k desired.FrontendKey) []byte {
	return nfnl.AppendDestination(b, uint8(k.Protocol), k.AddrPort)
}

// parseFrontendKey is the inverse of frontendKey.
func (f *family) parseFrontendKey(b []byte) (k desired.FrontendKey, ok bool) {
	protocol, a, ok := nfnl.ParseDestination(f.Family, b)
	return desired.FrontendKey{AddrPort: a, Protocol: desired.Protocol(protocol)}, ok
}

// interfaceKey encodes an interface's name like the kernel's registers.
func interfaceKey(name string) []byte {
	var key [unix.IFNAMSIZ]byte
	copy(key[:len(key)-1], name)
	return key[:]
}

func familyOf(a netip.Addr) *family { return &families[desired.FamilyOf(a)] }
