// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"net/netip"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/observe/metrics"
)

// families are those that a change is about.
func families(c *desired.Change) (out metrics.Families) {
	for i := range c.Pools {
		if out[c.Pools[i].Family] = true; out == metrics.Both {
			return out
		}
	}
	for _, f := range c.Frontends {
		if out[desired.FamilyOf(f.Key().Addr())] = true; out == metrics.Both {
			return out
		}
	}
	for _, addrs := range [][]netip.Addr{c.ClusterIPs.Added, c.ClusterIPs.Removed, c.HairpinIPs.Added, c.HairpinIPs.Removed} {
		for _, a := range addrs {
			out[desired.FamilyOf(a)] = true
		}
	}
	for _, prefixes := range [][]netip.Prefix{c.ServiceCIDRs.Added, c.ServiceCIDRs.Removed} {
		for _, p := range prefixes {
			out[desired.FamilyOf(p.Addr())] = true
		}
	}
	return out
}
