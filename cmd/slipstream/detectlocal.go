// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/slipstream-proxy/slipstream/internal/config"
	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// detectLocal says how traffic of this node's pods is recognized, by a valid
// configuration.
func detectLocal(c *config.Config) desired.DetectLocal {
	k := &c.KubeProxy
	switch k.DetectLocalMode {
	case "NodeCIDR":
		return desired.DetectLocal{Mode: desired.ByNodeCIDR}
	case "BridgeInterface":
		return desired.DetectLocal{Mode: desired.ByBridgeInterface, Interface: k.DetectLocal.BridgeInterface}
	case "InterfaceNamePrefix":
		return desired.DetectLocal{Mode: desired.ByInterfaceNamePrefix, Interface: k.DetectLocal.InterfaceNamePrefix}
	}
	return desired.DetectLocal{Mode: desired.ByClusterCIDR, CIDRs: config.ClusterCIDRs(k)}
}
