// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/slipstream-proxy/slipstream/test/kerneltest"
)

// TestCleanupOfKubeProxy checks that cleanup removes kube-proxy's objects with ours, unless
// --keep-kube-proxy is set, and never other objects.
func TestCleanupOfKubeProxy(t *testing.T) {
	kerneltest.Require(t, kerneltest.IPTablesNFT)
	s := newSite(t)
	s.nft("add table ip kube-proxy")
	s.nft("add table ip slipstream")
	s.nft("add table ip firewall")
	for _, args := range []string{"-N KUBE-SERVICES", "-A OUTPUT -j KUBE-SERVICES", "-N KUBE-ROUTER-FORWARD"} {
		_, err := s.node.Run(t.Context(), "iptables-nft", append([]string{"-w", "10", "-t", "nat"}, strings.Fields(args)...)...)
		s.check(err)
	}
	has := func(want, not []string) {
		t.Helper()
		rules := s.nft("list ruleset")
		for _, w := range want {
			if !strings.Contains(rules, w) {
				t.Errorf("%s is gone:\n%s", w, rules)
			}
		}
		for _, n := range not {
			if strings.Contains(rules, n) {
				t.Errorf("%s is left:\n%s", n, rules)
			}
		}
	}
	s.cleanup("--keep-kube-proxy")
	has([]string{"table ip kube-proxy", "KUBE-SERVICES", "table ip firewall"}, []string{"table ip slipstream"})
	s.cleanup()
	has([]string{"table ip firewall", "KUBE-ROUTER-FORWARD"}, []string{"kube-proxy", "KUBE-SERVICES"})
}

// nft runs the command on the node.
func (s *site) nft(command string) string {
	s.t.Helper()
	out, err := s.node.Run(s.t.Context(), "nft", strings.Fields(command)...)
	s.check(err)
	return string(out)
}
