// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"net/netip"
	"slices"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"k8s.io/klog/v2"
)

// nodePortAddrs are the addresses on which NodePorts answer, and with them
// health checks.
type nodePortAddrs struct {
	unsure bool // something has come that they depend on
	known  bool
	addrs  []netip.Addr
}

// now returns them, and whether they differ from the last time.
func (n *nodePortAddrs) now(s *desired.State) (addrs []netip.Addr, differ bool) {
	if n.known && !n.unsure {
		return n.addrs, false
	}
	addrs = s.NodePortAddresses()
	differ = !n.known || !slices.Equal(addrs, n.addrs)
	n.known, n.unsure, n.addrs = true, false, addrs
	switch {
	case !differ:
	case len(addrs) == 0:
		klog.InfoS("NodePorts answer nowhere, as no address of this node is selected")
	default:
		klog.V(2).InfoS("NodePorts answer on", "addresses", addrs)
	}
	return addrs, differ
}
