// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/slipstream-proxy/slipstream/test/kerneltest"
)

// TestLocalhostNodePorts checks that NodePorts answer the node on 127.0.0.1 in iptables mode,
// unless that is disabled.
func TestLocalhostNodePorts(t *testing.T) {
	kerneltest.Require(t, kerneltest.IPTablesNFT, kerneltest.IPSet)
	const parameter = "/proc/sys/net/ipv4/conf/all/route_localnet"
	loopback := netip.MustParseAddrPort("127.0.0.1:30080")
	for _, flag := range []string{"--iptables-localhost-nodeports=true", "--iptables-localhost-nodeports=false"} {
		t.Run(flag, func(t *testing.T) {
			s := newSite(t)
			s.save("web.yaml", nodePort(0, 1))
			s.run("--proxy-mode=iptables", flag)
			s.untilReached("web-0", "web-1")
			set, err := s.node.Run(t.Context(), "cat", parameter)
			s.check(err)
			got, err := reached(s.node, loopback, 1)
			if on := strings.HasSuffix(flag, "true"); on != (err == nil) || on != (string(set) == "1\n") {
				t.Errorf("127.0.0.1 leads to %v (%v), and route_localnet is %s", got, err, set)
			}
		})
	}
}

// TestInitOnlyLoopback checks that --init-only programs the rule that route_localnet needs
// before it sets that: otherwise neighbors reach loopback addresses until the proxy runs.
func TestInitOnlyLoopback(t *testing.T) {
	kerneltest.Require(t, kerneltest.IPTablesNFT, kerneltest.IPSet)
	s := newSite(t)
	s.check(s.kubeProxy("--init-only", "--proxy-mode=iptables", "--conntrack-max-per-core=0").Wait())
	set, err := s.node.Run(t.Context(), "cat", "/proc/sys/net/ipv4/conf/all/route_localnet")
	s.check(err)
	rules, err := s.node.Run(t.Context(), "iptables-nft-save", "-t", "filter")
	s.check(err)
	if string(set) != "1\n" || !strings.Contains(string(rules), "-j SLIP-LOCALNET") || !strings.Contains(string(rules), "-A SLIP-LOCALNET") {
		t.Errorf("route_localnet is %s, and the rules are\n%s", set, rules)
	}
}
