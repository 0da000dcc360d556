// SPDX-License-Identifier: Apache-2.0

package kerneltest

import (
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// VLAN is VLAN interfaces. It needs CONFIG_VLAN_8021Q.
var VLAN = define("VLANs", func() error {
	return probeLink(func(parent int) netlink.Link {
		return &netlink.Vlan{LinkAttrs: netlink.LinkAttrs{Name: "probe", ParentIndex: parent}, VlanId: 5}
	})
}, NetNS)

// Bond is bonds of interfaces. It needs CONFIG_BONDING.
var Bond = define("bonds", func() error {
	return probeLink(func(int) netlink.Link { return netlink.NewLinkBond(netlink.LinkAttrs{Name: "probe"}) })
}, NetNS)

// IPIP is IPv4 tunnels of the driver sit, in its mode ipip. It needs CONFIG_IPV6_SIT.
var IPIP = define("IPv4 tunnels", func() error {
	return probeLink(func(int) netlink.Link {
		return &netlink.Sittun{LinkAttrs: netlink.LinkAttrs{Name: "probe"}, Local: net.IPv4(192, 0, 2, 1), Proto: unix.IPPROTO_IPIP}
	})
}, NetNS)

// probeLink adds an interface. It is given the index of one that a VLAN can be on.
func probeLink(make func(parent int) netlink.Link) error {
	return inNewNetNS(func() error {
		parent := netlink.NewVeth(netlink.LinkAttrs{Name: "parent"})
		parent.PeerName = "peer"
		if err := netlink.LinkAdd(parent); err != nil {
			return err
		}
		return netlink.LinkAdd(make(parent.Index))
	})
}
