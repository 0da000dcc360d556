// SPDX-License-Identifier: Apache-2.0

package oracle

import "net/netip"

// Pair is an address or range in both families: IPv4 first, IPv6 second.
type Pair[T any] [2]T

// Family indexes a Pair.
func familyOf(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1
}

func addrs(v4, v6 string) Pair[netip.Addr] {
	return Pair[netip.Addr]{netip.MustParseAddr(v4), netip.MustParseAddr(v6)}
}

func ranges(v4, v6 string) Pair[netip.Prefix] {
	return Pair[netip.Prefix]{netip.MustParsePrefix(v4), netip.MustParsePrefix(v6)}
}

// The ranges that addresses are from.
var (
	ServiceCIDRs = ranges("10.96.0.0/16", "fd00:96::/112")
	ClusterCIDRs = ranges("10.200.0.0/14", "fd00:244::/32")         // of all pods
	VIPs         = ranges("203.0.113.0/24", "2001:db8:2::/64")      // external and load balancer IPs
	Clients      = ranges("198.18.0.0/16", "2001:db8:1::/64")       // of the outside host
	Strangers    = ranges("198.19.0.0/16", "2001:db8:1:1::/64")     // of the outside host, too
	nodeRange    = ranges("192.168.100.0/24", "fd00:100::/64")      // the fabric
	aliases      = ranges("10.201.128.0/17", "fd00:244:1:0:1::/80") // of pod a
)

const (
	Node1 = "n1"
	Node2 = "n2"
	Node3 = "n3"
)

// Elsewhere is the machine that answers packets to Service addresses that n1 forwards
// unchanged.
const Elsewhere = "elsewhere"

type nodePlan struct {
	address Pair[netip.Addr]
	pods    Pair[netip.Prefix]
}

var nodePlans = map[string]nodePlan{
	Node1: {addrs("192.168.100.11", "fd00:100::11"), ranges("10.201.0.0/16", "fd00:244:1::/64")},
	Node2: {addrs("192.168.100.12", "fd00:100::12"), ranges("10.202.0.0/16", "fd00:244:2::/64")},
	Node3: {addrs("192.168.100.13", "fd00:100::13"), ranges("10.203.0.0/16", "fd00:244:3::/64")},
}

// NodeAddress is a node's own address.
func NodeAddress(node string) Pair[netip.Addr] { return nodePlans[node].address }

// PodCIDR is a node's range of pod addresses.
func PodCIDR(node string) Pair[netip.Prefix] { return nodePlans[node].pods }

// Second is another address of n1's, on the same link, that its Node object does not
// have.
var Second = addrs("192.168.100.61", "fd00:100::61")

// LocalVIP is the address among VIPs that n1 has itself, on lo, as some load balancers
// want it.
var LocalVIP = addrs("203.0.113.1", "2001:db8:2::1")

// Endpoint is where something answers: a pod, or a node itself (host network).
type Endpoint struct {
	Name    string // of the machine
	Node    string
	Address Pair[netip.Addr]
}

// Endpoints are all that answer, on TargetPorts, over TCP and UDP.
var Endpoints = []Endpoint{
	{"b", Node1, addrs("10.201.0.2", "fd00:244:1::2")},
	{"c", Node1, addrs("10.201.0.3", "fd00:244:1::3")},
	{"d", Node2, addrs("10.202.0.2", "fd00:244:2::2")},
	{"e", Node2, addrs("10.202.0.3", "fd00:244:2::3")},
	{Node1, Node1, nodePlans[Node1].address},
	{Node2, Node2, nodePlans[Node2].address},
}

// TargetPorts are the ports that endpoints answer on.
var TargetPorts = []uint16{8080, 8081}

var (
	podA      = addrs("10.201.0.1", "fd00:244:1::1")
	podF      = addrs("10.202.0.9", "fd00:244:2::9")
	client    = addrs("192.168.100.200", "fd00:100::200")
	elsewhere = addrs("192.168.100.250", "fd00:100::250")
)
