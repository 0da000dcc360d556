// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/ipvs"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
)

func newIPVS(c dataplane.Config) (dataplane.Dataplane, error) { return ipvs.New(c, ipvs.Options{}) }

// TestIPVS runs every story in IPVS mode, and a few on the oldest kernel of the tests.
func TestIPVS(t *testing.T) {
	kerneltest.Require(t, kerneltest.IPVS, kerneltest.NFTables)
	Run(t, "ipvs", newIPVS, func(story string) string {
		if onOldest() {
			return only(story, few)
		}
		return ""
	})
}

// TestIPVSSpread makes sure that backends share the load, in IPVS mode.
func TestIPVSSpread(t *testing.T) {
	kerneltest.Require(t, kerneltest.IPVS, kerneltest.NFTables)
	if onOldest() {
		t.Skip("slow: runs on a newer kernel")
	}
	RunSpread(t, newIPVS)
}
