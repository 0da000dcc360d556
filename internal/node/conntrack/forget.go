// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"context"
	"net/netip"

	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// ForgetIPVS deletes the entries of flows to virtual servers of IPVS, given by address and
// port, because NAT rules only see a flow's first packet. Entries of flows that NAT rules
// have translated remain: IPVS, which translates by itself, does not set their status
// (IPS_DST_NAT). Protocol is UDP or SCTP.
func (c *Conn) ForgetIPVS(ctx context.Context, protocol desired.Protocol, servers []netip.AddrPort) (Stats, error) {
	var searches []*search
	for _, server := range servers {
		s := searchIn(&searches, familyOf(server))
		s.filter.addProtocol(protocol)
		s.filter.to.add(server)
		s.filter.replies.addAll()
		s.frontends[desired.FrontendKey{AddrPort: server, Protocol: protocol}] = &frontend{noNAT: true}
	}
	return c.run(ctx, searches)
}
