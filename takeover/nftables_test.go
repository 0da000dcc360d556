// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"slices"
	"strings"
	"testing"

	"github.com/slipstream-proxy/slipstream/test/kerneltest"
)

// TestNFTables wants kube-proxy's tables to go, and others' to stay.
func TestNFTables(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTables)
	n := newNode(t)
	n.run(`table inet kube-proxy {
	chain KUBE-SERVICES { counter; }
}
table ip firewall {
	set allowed { type ipv4_addr; elements = { 192.0.2.1 } }
	chain input { type filter hook input priority 0; ip saddr @allowed counter accept; }
}
`, "nft", "-f", "-")
	before := n.run("", "nft", "list", "ruleset")
	n.run(testdata(t, "nftables.nft"), "nft", "-f", "-")
	if with := n.run("", "nft", "list", "tables"); !strings.Contains(with, "ip6 kube-proxy") {
		t.Fatalf("kube-proxy's tables are not there:\n%s", with)
	}
	n.takeOver()
	compare(t, "nftables", n.run("", "nft", "list", "ruleset"), before)
	if want := []string{"nftables table ip kube-proxy", "nftables table ip6 kube-proxy"}; !slices.Equal(n.removed, want) {
		t.Errorf("told %v, want %v", n.removed, want)
	}
}
