// SPDX-License-Identifier: Apache-2.0

// Package netif lists and watches a node's network interfaces and their addresses.
package netif

import "net/netip"

// Namespace is a network namespace: a file descriptor of it, or 0 for the one of the
// calling thread.
type Namespace int

// Interface is a network interface.
type Interface struct {
	Index int
	Name  string

	// Type is the kind of a virtual interface, as "ip link add type" names it
	// (veth, bridge, vxlan ...), and "device" for others.
	Type string

	// Addresses are the addresses on which the kernel answers, in order and without
	// zones. An IPv6 address is left out while duplicate address detection
	// (RFC 4862, 5.4) has not finished, and when it has found a duplicate.
	Addresses []netip.Addr

	MTU      int  // bytes
	Up       bool // set up (IFF_UP), with or without a carrier
	Loopback bool

	// PortOf is the kind of the interface that this one is a port of (bridge,
	// bond, team ...); "" for none.
	PortOf string
}

// Update is a difference to the interfaces that were delivered before.
type Update struct {
	Full    bool // Changed has all interfaces
	Changed []Interface
	Gone    []int // indexes
}
