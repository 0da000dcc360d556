// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"context"
	"net/netip"

	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// ForgetIPVS deletes the entries of flows to virtual servers of IPVS, given by address and
// port, that IPVS carries or has carried. They would keep their packets from rules of NAT,
// which only see a flow's first one. Entries of flows that such rules have translated
// already stay: IPVS, which translates by itself, does not set their status (IPS_DST_NAT).
// Protocol is UDP or SCTP.
func (c *Conn) ForgetIPVS(ctx context.Context, protocol desired.Protocol, servers []netip.AddrPort) (Stats, error) {
	var searches []*search
	for _, server := range servers {
		e := endpointOf(server)
		s := searchIn(&searches, e.family())
		s.filter.addProtocol(protocol)
		s.filter.to.add(e)
		s.filter.replies.addAll()
		s.frontends[destination{e, protocol}] = &frontend{noNAT: true}
	}
	return c.run(ctx, searches)
}
