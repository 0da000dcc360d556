// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"testing"

	"github.com/slipstream-proxy/slipstream/backend"
	"github.com/slipstream-proxy/slipstream/backend/iptables"
	"github.com/slipstream-proxy/slipstream/test/kerneltest"
)

func newIPTables(v iptables.Variant) Mode {
	return func(c backend.Config) (backend.Backend, error) {
		return iptables.New(c, iptables.Options{Variant: v})
	}
}

// TestIPTablesLegacy tells every story to the kernel, in iptables mode by way of
// x_tables.
func TestIPTablesLegacy(t *testing.T) {
	kerneltest.Require(t, kerneltest.IPTablesLegacy, kerneltest.IPSet)
	RunAll(t, newIPTables(iptables.Legacy))
}

// TestIPTablesNFT does, by way of nf_tables.
func TestIPTablesNFT(t *testing.T) {
	kerneltest.Require(t, kerneltest.IPTablesNFT, kerneltest.IPSet)
	RunAll(t, newIPTables(iptables.NFT))
}

// TestIPTablesLegacySpread makes sure that backends share the load, in iptables mode.
func TestIPTablesLegacySpread(t *testing.T) {
	kerneltest.Require(t, kerneltest.IPTablesLegacy, kerneltest.IPSet)
	RunSpread(t, newIPTables(iptables.Legacy))
}

// TestIPTablesNFTSpread does, by way of nf_tables.
func TestIPTablesNFTSpread(t *testing.T) {
	kerneltest.Require(t, kerneltest.IPTablesNFT, kerneltest.IPSet)
	RunSpread(t, newIPTables(iptables.NFT))
}
