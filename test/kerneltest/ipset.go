// SPDX-License-Identifier: Apache-2.0

package kerneltest

import (
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// IPSet is the kernel's IP sets of the types that iptables mode uses, over netlink. It
// needs CONFIG_IP_SET, CONFIG_IP_SET_HASH_IP, CONFIG_IP_SET_HASH_IPPORT,
// CONFIG_IP_SET_HASH_IPPORTNET, CONFIG_IP_SET_HASH_NET and CONFIG_IP_SET_BITMAP_PORT
// (Linux 2.6.39), and CONFIG_NETFILTER_XT_SET for rules to use them.
var IPSet = define("IP sets", probeIPSet, NetNS)

func probeIPSet() error {
	return inNewNetNS(func() error {
		h, err := netlink.NewHandle(unix.NETLINK_NETFILTER)
		if err != nil {
			return err
		}
		defer h.Close()
		if _, _, err := h.IpsetProtocol(); err != nil {
			return err
		}
		ports := netlink.IpsetCreateOptions{PortTo: 1<<16 - 1}
		if err := h.IpsetCreate("probe ports", "bitmap:port", ports); err != nil {
			return fmt.Errorf("bitmap:port: %w", err)
		}
		for _, typ := range []string{"hash:ip", "hash:ip,port", "hash:ip,port,net", "hash:net"} {
			if err := h.IpsetCreate("probe "+typ, typ, netlink.IpsetCreateOptions{Family: unix.AF_INET6}); err != nil {
				return fmt.Errorf("%s: %w", typ, err)
			}
		}
		return nil
	})
}
