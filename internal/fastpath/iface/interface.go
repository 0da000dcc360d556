// SPDX-License-Identifier: Apache-2.0

// Package iface knows a node's network interfaces: which there are, and which of
// them are to take part in the fast path.
package iface

import "net/netip"

// Interface is a network interface.
type Interface struct {
	Index int
	Name  string

	// Type is the kind of a virtual interface, as "ip link add type" names it
	// (veth, bridge, vxlan ...), and "device" for others.
	Type string

	Addresses []netip.Addr // in order; only where a Selector asks for them
	MTU       int          // bytes

	Up       bool // set up (IFF_UP), with a carrier or without
	Loopback bool

	// PortOf is the kind of the interface that this one is a port of (bridge,
	// bond, team ...); "" for none.
	PortOf string
}

// byDefault says whether an interface takes part where no expression decides: it is
// up, not loopback, not WireGuard, and not a port of another interface. Routes lead to
// the bridge or the bond, not to its ports. A flow to a port of a bridge would also
// keep the link address of its next hop when that changes. WireGuard is left out
// because no test kernel has it.
func byDefault(i *Interface) bool {
	if !i.Up || i.Loopback || i.Type == "wireguard" {
		return false
	}
	switch i.PortOf {
	case "bridge", "bond", "team", "openvswitch":
		return false
	}
	return true
}
