// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"context"
	"slices"
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/iptables"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/ipvs"
	"github.com/slipstream-proxy/slipstream/test/kerneltest"
)

func newIPVS(c dataplane.Config) (dataplane.Dataplane, error) { return ipvs.New(c, ipvs.Options{}) }

func newIPVSLegacy(c dataplane.Config) (dataplane.Dataplane, error) {
	return ipvs.New(c, ipvs.Options{NewTable: func(c dataplane.Config) (ipvs.Table, error) {
		return iptables.New(context.Background(), c, iptables.Options{Variant: iptables.Legacy})
	}})
}

// TestIPVS runs every story in IPVS mode. On the oldest kernel of the tests, which takes longest,
// the stories are those about the table.
func TestIPVS(t *testing.T) {
	kerneltest.Require(t, kerneltest.IPVS, kerneltest.NFTables)
	Run(t, "ipvs", newIPVS, func(story string) string {
		if onOldest() && !slices.Contains(chosen["ipvs-legacy"], story) {
			return "runs on a newer kernel"
		}
		return ""
	})
}

// TestIPVSLegacy runs stories in IPVS mode with a table of iptables-legacy.
func TestIPVSLegacy(t *testing.T) {
	kerneltest.Require(t, kerneltest.IPVS, kerneltest.IPTablesLegacy, kerneltest.IPSet)
	Run(t, "ipvs-legacy", newIPVSLegacy, onlyOldest)
}

// TestIPVSSpread makes sure that backends share the load, in IPVS mode.
func TestIPVSSpread(t *testing.T) {
	kerneltest.Require(t, kerneltest.IPVS, kerneltest.NFTables)
	RunSpread(t, newIPVS)
}
