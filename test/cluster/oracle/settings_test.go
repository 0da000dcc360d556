// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
)

const (
	NFTables = "nftables"
	IPTables = "iptables"
	IPVS     = "ipvs"
)

// Settings are how a proxy is set up, in kube-proxy's words, and its node.
type Settings struct {
	Mode            string // NFTables, IPTables or IPVS
	MasqueradeAll   bool
	DetectLocalMode string         // ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix
	ClusterCIDRs    []netip.Prefix // with ClusterCIDR; may be empty
	Interface       string         // with BridgeInterface and InterfaceNamePrefix

	// NodePortAddresses has ranges and "primary". (Nothing would stand for "primary" in
	// nftables mode, and for all in the others.)
	NodePortAddresses []string

	// Variant is of the iptables commands: "legacy" or "nft". In IPVS mode, only kube-proxy
	// uses them.
	Variant string

	// Of iptables mode:
	LocalhostNodePorts bool // NodePorts are to answer on IPv4 loopback addresses
	Firewall           bool // the node lets in and forwards only what some rule accepts
}

// String is the settings as kube-proxy's flags.
func (s Settings) String() string {
	words := []string{
		"--proxy-mode=" + s.Mode,
		"--detect-local-mode=" + s.DetectLocalMode,
		"--nodeport-addresses=" + strings.Join(s.NodePortAddresses, ","),
	}
	if len(s.ClusterCIDRs) > 0 {
		words = append(words, "--cluster-cidr="+strings.Join(texts(s.ClusterCIDRs...), ","))
	}
	switch s.DetectLocalMode {
	case "BridgeInterface":
		words = append(words, "--pod-bridge-interface="+s.Interface)
	case "InterfaceNamePrefix":
		words = append(words, "--pod-interface-name-prefix="+s.Interface)
	}
	if s.MasqueradeAll {
		words = append(words, "--masquerade-all")
	}
	if s.Mode == IPTables {
		words = append(words, fmt.Sprintf("--iptables-localhost-nodeports=%v (iptables-%s, firewall: %v)", s.LocalhostNodePorts, s.Variant, s.Firewall))
	}
	return strings.Join(words, " ")
}

// HasNodePorts says whether node ports answer at an address of n1's.
func (s Settings) HasNodePorts(a netip.Addr) bool {
	if a.IsLoopback() && (a.Is6() || !s.LocalhostNodePorts) {
		return false
	}
	some := false // ranges of the family
	for _, text := range s.NodePortAddresses {
		if text == "primary" {
			if a == NodeAddress(Node1)[familyOf(a)] {
				return true
			}
			some = true
			continue
		}
		if p := netip.MustParsePrefix(text); p.Addr().Is4() == a.Is4() {
			if p.Contains(a) {
				return true
			}
			some = true
		}
	}
	return !some
}

func (g *generator) settings() Settings {
	s := Settings{Mode: NFTables, MasqueradeAll: g.once(8), DetectLocalMode: "ClusterCIDR"}
	switch g.IntN(8) {
	case 0:
		s.DetectLocalMode = "NodeCIDR"
	case 1:
		// The interface of one pod, in place of a bridge of all.
		s.DetectLocalMode, s.Interface = "BridgeInterface", "veth2"
	case 2:
		s.DetectLocalMode, s.Interface = "InterfaceNamePrefix", "veth"
	case 3: // no ClusterCIDR: nothing is known to be local
	case 4:
		s.ClusterCIDRs = ClusterCIDRs[:1] // of one family only
	default:
		s.ClusterCIDRs = ClusterCIDRs[:]
	}
	second := []string{
		netip.PrefixFrom(Second[0], 32).String(), netip.PrefixFrom(Second[1], 128).String(),
	}
	s.NodePortAddresses = [][]string{
		{"primary"}, append([]string{"primary"}, second...),
		{"0.0.0.0/0", "::/0"},
		second, second[:1],
		{"192.168.0.0/16", "fd00:100::/64"},
	}[g.IntN(6)]
	return s
}

// ForIPTables makes a cluster one for iptables mode, with a variant of the commands: "legacy"
// or "nft". Its objects stay the same. The settings of that mode are chosen by the seed, too.
func (c *Cluster) ForIPTables(variant string) {
	g := &generator{Rand: rand.New(rand.NewPCG(c.Seed, 2))}
	s := &c.Settings
	s.Mode, s.Variant = IPTables, variant
	s.LocalhostNodePorts = !g.once(4)
	s.Firewall = g.once(4)
	switch g.IntN(4) {
	case 0:
		s.NodePortAddresses = nil
	case 1:
		s.NodePortAddresses = []string{"127.0.0.0/8", "192.168.0.0/16", "::1/128", "fd00:100::/64"}
	}
}

// ForIPVS has the cluster be looked at in IPVS mode. Its objects stay the same.
func (c *Cluster) ForIPVS() {
	c.Settings.Mode, c.Settings.Variant = IPVS, "nft"
	if rand.New(rand.NewPCG(c.Seed, 3)).IntN(4) == 0 {
		c.Settings.NodePortAddresses = nil
	}
}
