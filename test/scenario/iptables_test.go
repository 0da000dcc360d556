// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/iptables"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
)

func newIPTables(v iptables.Variant) Mode {
	return func(c dataplane.Config) (dataplane.Dataplane, error) {
		return iptables.New(context.Background(), c, iptables.Options{Variant: v})
	}
}

// onlyHere skips, on User Mode Linux, stories that the machine's own kernel can run, and on the oldest kernel
// the others, too: commands take several times as long there, and each story runs hundreds.
func onlyHere(story string) string {
	if kerneltest.UML() && (onOldest() || !strings.Contains(story, "sctp")) {
		return "slow: what runs commands is tested on the machine's own kernel"
	}
	return ""
}

// only skips stories that are in none of the lists.
func only(story string, lists ...[]string) string {
	if !slices.Contains(slices.Concat(lists...), story) {
		return "slow: runs on another kernel"
	}
	return ""
}

// onOldest reports whether this is the oldest kernel of the tests, which has much that newer ones do otherwise.
func onOldest() bool { return strings.HasPrefix(kerneltest.Kernel(), "6.1.") }

// TestIPTablesLegacy runs every story in iptables mode, over x_tables.
func TestIPTablesLegacy(t *testing.T) {
	kerneltest.Require(t, kerneltest.IPTablesLegacy, kerneltest.IPSet)
	Run(t, "iptables", newIPTables(iptables.Legacy), onlyHere)
}

// TestIPTablesNFT runs every story in iptables mode with iptables-nft, which is Debian's
// default, and a few on the oldest kernel of the tests.
func TestIPTablesNFT(t *testing.T) {
	kerneltest.Require(t, kerneltest.IPTablesNFT, kerneltest.IPSet)
	Run(t, "iptables", newIPTables(iptables.NFT), func(story string) string {
		if onOldest() {
			return only(story, few)
		}
		return onlyHere(story)
	})
}

// TestIPTablesLegacySpread makes sure that backends share the load, in iptables mode.
func TestIPTablesLegacySpread(t *testing.T) {
	kerneltest.Require(t, kerneltest.IPTablesLegacy, kerneltest.IPSet)
	if why := onlyHere("spread"); why != "" {
		t.Skip(why)
	}
	RunSpread(t, newIPTables(iptables.Legacy))
}

// TestIPTablesNFTSpread is the same with iptables-nft.
func TestIPTablesNFTSpread(t *testing.T) {
	kerneltest.Require(t, kerneltest.IPTablesNFT, kerneltest.IPSet)
	if why := onlyHere("spread"); why != "" {
		t.Skip(why)
	}
	RunSpread(t, newIPTables(iptables.NFT))
}
