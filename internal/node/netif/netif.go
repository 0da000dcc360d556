// SPDX-License-Identifier: Apache-2.0

// Package netif lists and watches a node's network interfaces and their addresses.
package netif

import "net/netip"

// Namespace is a file descriptor of a network namespace, or 0 for the calling thread's.
type Namespace int

// Interface is a network interface.
type Interface struct {
	Index int
	Name  string

	// Type is the kind of a virtual interface, as "ip link add type" names it
	// (veth, bridge, vxlan ...), and "device" for others.
	Type string

	// Addresses are the addresses on which the kernel answers, in order and without
	// zones: not IPv6 addresses during duplicate address detection (RFC 4862, 5.4),
	// or after it has found a duplicate.
	Addresses []netip.Addr

	MTU      int  // bytes
	Up       bool // set up (IFF_UP), with or without a carrier
	Loopback bool

	// PortOf is the kind of the interface of which this one is a port (bridge, bond,
	// team ...); "" for none.
	PortOf string
}

// Update is the difference from the interfaces delivered before.
type Update struct {
	Full    bool // Changed has all interfaces
	Changed []Interface
	Gone    []int // indexes
}
