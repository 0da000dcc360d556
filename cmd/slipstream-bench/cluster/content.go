// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"net/netip"
	"slices"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// Content is what the kernel should have for the cluster as it is. It follows from the
// numbers alone: none of the measured code takes part.
func (c *Cluster) Content() *dataplane.Content {
	out := dataplane.NewContent()
	for i := range c.Each() {
		for _, f := range c.Families {
			var t dataplane.Target
			var local []desired.Backend
			for _, pod := range c.Pods(i) {
				b := desired.NewBackend(f.PodAddr(pod))
				t.Backends = append(t.Backends, b)
				if nodeOf(pod, c.nodes) == LocalNode {
					out.HairpinIPs[f.PodIP(pod)] = true
					local = append(local, b)
				}
			}
			slices.SortFunc(t.Backends, desired.Backend.Compare)
			slices.SortFunc(local, desired.Backend.Compare)
			if before, is := c.external(i); is {
				t.Affinity = affinitySeconds
				outside := t
				outside.External = true
				outside.FromOutside = &dataplane.Choice{Backends: local}
				if len(local) == 0 && len(t.Backends) > 0 {
					outside.FromOutside.IfEmpty = desired.Drop
				}
				out.Frontends[key(f.Node, nodePort(before))] = outside
				outside.Sources = f.sources
				out.Frontends[key(f.loadBalancerIP(before), Port)] = outside
			}
			ip := f.ClusterIP(i)
			out.ClusterIPs[ip] = true
			out.Frontends[key(ip, Port)] = t
		}
	}
	return out
}

func key(ip netip.Addr, port uint16) desired.FrontendKey {
	return desired.FrontendKey{AddrPort: netip.AddrPortFrom(ip, port), Protocol: desired.TCP}
}
