// SPDX-License-Identifier: Apache-2.0

package programming

import (
	"net/netip"
	"slices"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// content is what the kernel should have for the cluster as it is. It follows
// from the numbers alone; no code that is measured has a part in it.
func (c *cluster) content() *dataplane.Content {
	out := dataplane.NewContent()
	for i := range c.each() {
		for _, f := range c.families {
			var t dataplane.Target
			var local []desired.Backend
			for _, one := range c.pods(i) {
				for _, pod := range one {
					ip := f.podIP(pod)
					b := desired.NewBackend(netip.AddrPortFrom(ip, targetPort))
					t.Backends = append(t.Backends, b)
					if nodeOf(pod, c.nodes) == localNode {
						out.HairpinIPs[ip] = true
						local = append(local, b)
					}
				}
			}
			slices.SortFunc(t.Backends, desired.Backend.Compare)
			ip := f.clusterIP(i)
			out.ClusterIPs[ip] = true
			out.Frontends[desired.FrontendKey{AddrPort: netip.AddrPortFrom(ip, port), Protocol: desired.TCP}] = c.externalContent(out, f, i, t, local)
		}
	}
	return out
}
