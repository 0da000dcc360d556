// SPDX-License-Identifier: Apache-2.0

package stage

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/slipstream-proxy/slipstream/test/lab"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// address adds an address to a link of the machine's, such that the kernel does not
// choose it as a source for other machines: on lo it is of host scope, and an IPv6 one
// is deprecated.
func address(m *lab.Machine, link string, p netip.Prefix) error {
	handle := m.Namespace().Netlink()
	l, err := handle.LinkByName(link)
	if err != nil {
		return fmt.Errorf("%s: %s: %w", m.Name(), link, err)
	}
	a := &netlink.Addr{IPNet: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}}
	if link == "lo" && p.Addr().Is4() {
		a.Scope = int(netlink.SCOPE_HOST)
	}
	if p.Addr().Is6() {
		a.Flags = unix.IFA_F_NODAD
		a.ValidLft, a.PreferedLft = forever, 0
	}
	if err := handle.AddrAdd(l, a); err != nil {
		return fmt.Errorf("%s: address %v: %w", m.Name(), p, err)
	}
	return nil
}

// forever is the kernel's INFINITY_LIFE_TIME, in seconds.
const forever = 1<<32 - 1

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Masked().Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
