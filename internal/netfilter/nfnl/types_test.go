// SPDX-License-Identifier: Apache-2.0

package nfnl

import (
	"testing"

	"golang.org/x/sys/unix"
)

// TestFamilyNames: packets are traced through tables of all families that nft knows.
func TestFamilyNames(t *testing.T) {
	for f, want := range map[Family]string{
		IPv4: "ip", IPv6: "ip6", INET: "inet", NetDev: "netdev", unix.NFPROTO_ARP: "arp", unix.NFPROTO_BRIDGE: "bridge",
	} {
		if f.String() != want {
			t.Errorf("family %d is %q, want %q", uint8(f), f, want)
		}
	}
}
