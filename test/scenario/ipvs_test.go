// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/ipvs"
	"github.com/slipstream-proxy/slipstream/test/kerneltest"
)

func newIPVS(c dataplane.Config) (dataplane.Dataplane, error) { return ipvs.New(c, ipvs.Options{}) }

// TestIPVS runs every story in IPVS mode.
func TestIPVS(t *testing.T) {
	kerneltest.Require(t, kerneltest.IPVS, kerneltest.NFTables)
	Run(t, "ipvs", newIPVS, nil)
}

// TestIPVSSpread makes sure that backends share the load, in IPVS mode.
func TestIPVSSpread(t *testing.T) {
	kerneltest.Require(t, kerneltest.IPVS, kerneltest.NFTables)
	RunSpread(t, newIPVS)
}
