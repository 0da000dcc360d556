// SPDX-License-Identifier: Apache-2.0

// Package iface chooses the network interfaces that take part in the fast path.
package iface

import "github.com/slipstream-proxy/slipstream/internal/node/netif"

// byDefault reports whether an interface takes part without an expression: it is up, not
// loopback, not WireGuard (which no test kernel has), and not a port of another interface
// (see package fastpath).
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
