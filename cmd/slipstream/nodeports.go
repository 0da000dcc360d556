// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/slipstream-proxy/slipstream/desired"
	"github.com/spf13/cobra"
	"k8s.io/klog/v2"
)

// nodePortFlags say on which addresses NodePorts answer.
type nodePortFlags struct {
	addresses []string
	localhost bool
}

// primary is the value that stands for the Node's own addresses.
const primary = "primary"

func (o *nodePortFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringSliceVar(&o.addresses, "nodeport-addresses", []string{primary}, "where NodePorts answer: "+primary+", or ranges of this node's addresses, comma-separated")
	f.BoolVar(&o.localhost, "iptables-localhost-nodeports", false, "answer on NodePorts of loopback addresses; refused, as nftables mode does not")
}

// config checks the flags.
func (o *nodePortFlags) config() (c desired.NodePortAddresses, err error) {
	if o.localhost {
		return c, fmt.Errorf("--iptables-localhost-nodeports: nftables mode does not answer on NodePorts of loopback addresses: that takes route_localnet, which lets the network reach what listens on this node's loopback addresses only")
	}
	for _, text := range o.addresses {
		text = strings.TrimSpace(text)
		if text == primary {
			if len(o.addresses) > 1 {
				return c, fmt.Errorf("--nodeport-addresses: %s is one value, and takes no ranges beside it", primary)
			}
			c.Primary = true
			return c, nil
		}
		p, err := parseRange(text)
		if err != nil {
			return c, fmt.Errorf("--nodeport-addresses: %w, nor %s", err, primary)
		}
		if p.Addr().IsLoopback() && p.Bits() >= loopbackBits(p) {
			klog.InfoS("--nodeport-addresses: nftables mode does not answer on loopback addresses", "range", p)
		}
		c.CIDRs = append(c.CIDRs, p)
	}
	c.Primary = len(c.CIDRs) == 0
	return c, nil
}

// loopbackBits is the prefix length of a family's loopback addresses.
func loopbackBits(p netip.Prefix) int {
	if p.Addr().Is4() {
		return 8
	}
	return 128
}

// parseRange parses a range of addresses. Bits beyond its length are dropped, as
// kube-proxy drops them.
func parseRange(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	if err != nil || p.Addr().Is4In6() {
		return netip.Prefix{}, fmt.Errorf("%q is not a range of addresses such as 10.244.0.0/16", text)
	}
	return p.Masked(), nil
}
