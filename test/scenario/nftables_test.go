// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/nftables"
	"github.com/slipstream-proxy/slipstream/test/kerneltest"
)

func newNFTables(c dataplane.Config) (dataplane.Dataplane, error) { return nftables.New(c) }

// TestNFTables runs every story in nftables mode.
func TestNFTables(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTables)
	Run(t, "nftables", newNFTables, nil)
}

// TestNFTablesSpread makes sure that backends share the load, in nftables mode.
func TestNFTablesSpread(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTables)
	RunSpread(t, newNFTables)
}
