// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"net/netip"
	"strings"

	"github.com/slipstream-proxy/slipstream/test/oracle/stage"
)

// Settings are how a proxy is set up, in kube-proxy's words.
type Settings struct {
	MasqueradeAll   bool
	DetectLocalMode string         // ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix
	ClusterCIDRs    []netip.Prefix // with ClusterCIDR; may be empty
	Interface       string         // with BridgeInterface and InterfaceNamePrefix

	// NodePortAddresses is "primary", or ranges. (Nothing would stand for "primary" in
	// nftables mode.)
	NodePortAddresses []string
}

// String is the settings as kube-proxy's flags.
func (s Settings) String() string {
	words := []string{
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
	return strings.Join(words, " ")
}

func (g *generator) settings() Settings {
	s := Settings{MasqueradeAll: g.once(8), DetectLocalMode: "ClusterCIDR"}
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
		s.ClusterCIDRs = stage.ClusterCIDRs[:1] // of one family only
	default:
		s.ClusterCIDRs = stage.ClusterCIDRs[:]
	}
	second := []string{
		netip.PrefixFrom(stage.Second[0], 32).String(), netip.PrefixFrom(stage.Second[1], 128).String(),
	}
	s.NodePortAddresses = [][]string{
		{"primary"}, {"primary"},
		{"0.0.0.0/0", "::/0"},
		second, second[:1],
		{"192.168.0.0/16", "fd00:100::/64"},
	}[g.IntN(6)]
	return s
}
