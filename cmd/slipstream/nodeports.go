// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/netip"

	"github.com/slipstream-proxy/slipstream/internal/config"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/spf13/pflag"
	"k8s.io/klog/v2"
)

// addNodePorts defines the flag for where NodePorts answer.
func addNodePorts(fs *pflag.FlagSet, addresses *[]string, otherwise string) {
	fs.StringSliceVar(addresses, "nodeport-addresses", nil, "where NodePorts answer: "+config.Primary+", or ranges of this node's addresses, comma-separated (default: "+otherwise+")")
}

// nodePorts says on which addresses NodePorts answer, by valid settings. Loopback
// is whether those on loopback addresses are to.
func nodePorts(addresses []string, loopback bool) (n desired.NodePortAddresses) {
	n.Loopback = loopback
	for _, text := range addresses {
		if text == config.Primary {
			n.Primary = true
			continue
		}
		p, _ := config.ParseRange(text)
		if (!loopback || p.Addr().Is6()) && p.Addr().IsLoopback() && p.Bits() >= loopbackBits(p) {
			klog.InfoS("--nodeport-addresses: NodePorts do not answer on these loopback addresses", "range", p)
		}
		n.CIDRs = append(n.CIDRs, p)
	}
	return n
}

// loopbackBits is the prefix length of a family's loopback addresses.
func loopbackBits(p netip.Prefix) int {
	if p.Addr().Is4() {
		return 8
	}
	return 128
}
