// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"path/filepath"
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/nftables"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
)

func newNFTables(c dataplane.Config) (dataplane.Dataplane, error) { return nftables.New(c) }

// TestNFTables runs every story in nftables mode on the machine's own kernel, those that use every part of the tables
// on the oldest of the tests, and a few between them.
func TestNFTables(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTables)
	Run(t, "nftables", newNFTables, func(story string) string {
		switch {
		case kerneltest.UML() && onOldest():
			return only(story, basic, more)
		case kerneltest.UML():
			return only(story, few)
		}
		return ""
	})
}

// TestNFTablesAlgorithms runs stories about which endpoints there are to choose from with other
// algorithms than a random choice.
func TestNFTablesAlgorithms(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTables)
	if kerneltest.UML() {
		t.Skip("slow: package nftables tests the algorithms on these kernels")
	}
	for _, algorithm := range []desired.Algorithm{desired.RoundRobin, desired.MaglevPort} {
		for _, name := range []string{
			"both-policies", "nodeport-loopback", "session-affinity-external", "terminating", "topology-nodes", "topology-zones",
		} {
			t.Run(algorithm.String()+"/"+name, func(t *testing.T) {
				t.Parallel()
				run(t, filepath.Join(Dir, name+".txt"), &story{modeName: "nftables", mode: newNFTables, algorithm: algorithm})
			})
		}
	}
}

// TestNFTablesSpread makes sure that backends share the load, in nftables mode.
func TestNFTablesSpread(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTables)
	if kerneltest.UML() {
		t.Skip("slow: package nftables tests the spread on an older kernel")
	}
	RunSpread(t, newNFTables)
}
