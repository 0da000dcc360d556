// SPDX-License-Identifier: Apache-2.0

// Package iface chooses the network interfaces that take part in the fast path.
package iface

import "github.com/slipstream-proxy/slipstream/internal/node/netif"

// byDefault says whether an interface takes part where no expression decides: it is
// up, not loopback, not WireGuard, and not a port of another interface. Routes lead to
// the bridge or the bond, not to its ports. A flow to a port of a bridge would also
// keep the link address of its next hop when that changes. WireGuard is left out
// because no test kernel has it.
func byDefault(i *netif.Interface) bool {
	if !i.Up || i.Loopback || i.Type == "wireguard" {
		return false
	}
	switch i.PortOf {
	case "bridge", "bond", "team", "openvswitch":
		return false
	}
	return true
}
