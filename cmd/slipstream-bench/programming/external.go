// SPDX-License-Identifier: Apache-2.0

package programming

import (
	"net/netip"
	"slices"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	corev1 "k8s.io/api/core/v1"
)

// External Services are of type LoadBalancer, with everything that makes more of
// a Service than a ClusterIP: a NodePort, a load balancer's address for certain
// sources only, externalTrafficPolicy Local and session affinity.

const affinitySeconds = 10_800

// firstNodePort is the lowest NodePort that is used.
const firstNodePort = 2_000

// external says whether a Service is, and counts those before it.
func (c *cluster) external(service int) (before int, is bool) {
	before = service * c.percent / 100
	return before, (service+1)*c.percent/100 > before
}

func nodePort(before int) uint16 { return uint16(firstNodePort + before%(2*maxExternal)) }

// loadBalancerIP is the address of an external Service's load balancer.
func (f family) loadBalancerIP(before int) netip.Addr { return nth(f.external, before+1) }

// fillExternal makes a Service an external one.
func fillExternal(svc *corev1.Service, before int, families []family) {
	seconds := int32(affinitySeconds)
	svc.Spec.Type = corev1.ServiceTypeLoadBalancer
	svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	svc.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	svc.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &seconds}}
	svc.Spec.Ports[0].NodePort = int32(nodePort(before))
	for _, f := range families {
		svc.Status.LoadBalancer.Ingress = append(svc.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: f.loadBalancerIP(before).String()})
		for _, p := range f.sources {
			svc.Spec.LoadBalancerSourceRanges = append(svc.Spec.LoadBalancerSourceRanges, p.String())
		}
	}
}

// externalContent adds the frontends that only external Services have. The target
// is that of the ClusterIP.
func (c *cluster) externalContent(out *dataplane.Content, f family, service int, t dataplane.Target, local []desired.Backend) dataplane.Target {
	before, is := c.external(service)
	if !is {
		return t
	}
	t.Affinity = affinitySeconds
	outside := t
	outside.External = true
	outside.FromOutside = &dataplane.Choice{Backends: slices.SortedFunc(slices.Values(local), desired.Backend.Compare)}
	if len(local) == 0 && len(t.Backends) > 0 {
		outside.FromOutside.IfEmpty = desired.Drop
	}
	key := func(ip netip.Addr, port uint16) desired.FrontendKey {
		return desired.FrontendKey{AddrPort: netip.AddrPortFrom(ip, port), Protocol: desired.TCP}
	}
	out.Frontends[key(f.node, nodePort(before))] = outside
	outside.Sources = f.sources
	out.Frontends[key(f.loadBalancerIP(before), port)] = outside
	return t
}
