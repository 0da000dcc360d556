// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"net/netip"
	"slices"

	"github.com/slipstream-proxy/slipstream/backend"
	"github.com/slipstream-proxy/slipstream/desired"
)

// content is what the kernel should have for the cluster as it is. It follows
// from the numbers alone; no code that is measured has a part in it.
func (c *cluster) content() *backend.Content {
	out := &backend.Content{
		Frontends:  map[desired.FrontendKey]backend.Target{},
		ClusterIPs: map[netip.Addr]bool{},
		HairpinIPs: map[netip.Addr]bool{},
	}
	for i := range c.each() {
		for _, f := range c.families {
			var t backend.Target
			for _, one := range c.pods(i) {
				for _, pod := range one {
					ip := f.podIP(pod)
					t.Backends = append(t.Backends, desired.NewBackend(netip.AddrPortFrom(ip, targetPort)))
					if nodeOf(pod, c.nodes) == localNode {
						out.HairpinIPs[ip] = true
					}
				}
			}
			slices.SortFunc(t.Backends, desired.Backend.Compare)
			ip := f.clusterIP(i)
			out.ClusterIPs[ip] = true
			out.Frontends[desired.FrontendKey{AddrPort: netip.AddrPortFrom(ip, port), Protocol: desired.TCP}] = t
		}
	}
	return out
}
