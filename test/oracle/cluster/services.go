// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/slipstream-proxy/slipstream/test/oracle/stage"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

// zones are those that nodes are in and hints are for. No node is in zone-c.
var zones = []string{"zone-a", "zone-b", "zone-c"}

// nodes are n1, n2 and n3, with random zones. The first address of a Node decides which
// family is the cluster's primary one.
func (g *generator) nodes() []*corev1.Node {
	primary := 0
	if g.once(4) {
		primary = 1
	}
	var all []*corev1.Node
	for _, name := range []string{stage.Node1, stage.Node2, stage.Node3} {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}}
		if !g.once(6) {
			n.Labels[corev1.LabelTopologyZone] = pick(g, zones[:2]...)
		}
		for _, a := range stage.NodeAddress(name) {
			n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a.String()})
		}
		cidrs := stage.PodCIDR(name)
		n.Spec.PodCIDRs = texts(cidrs[:]...)
		if primary == 1 {
			slices.Reverse(n.Status.Addresses)
			slices.Reverse(n.Spec.PodCIDRs)
		}
		n.Spec.PodCIDR = n.Spec.PodCIDRs[0]
		all = append(all, n)
	}
	return all
}

// Labels by which a proxy ignores a Service or a slice.
const (
	labelProxyName = "service.kubernetes.io/service-proxy-name"
	labelHeadless  = corev1.IsHeadlessService
)

// Proxied reports whether a proxy handles a Service at all.
func Proxied(svc *corev1.Service) bool {
	_, another := svc.Labels[labelProxyName]
	return !another && svc.Spec.Type != corev1.ServiceTypeExternalName && svc.Spec.ClusterIP != corev1.ClusterIPNone
}

func (g *generator) service(i int) (*corev1.Service, []*discoveryv1.EndpointSlice) {
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{
		Namespace: Namespaces[i%len(Namespaces)],
		Name:      fmt.Sprint("svc", i/len(Namespaces)),
		Labels:    map[string]string{},
	}}
	spec := &svc.Spec
	if g.once(25) {
		spec.Type, spec.ExternalName = corev1.ServiceTypeExternalName, "example.com"
		return svc, g.slices(svc)
	}
	spec.Type = pick(g, corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer)
	families := g.families(spec)
	g.ports(spec)
	if spec.Type == corev1.ServiceTypeClusterIP && g.once(8) {
		spec.ClusterIP, spec.ClusterIPs = corev1.ClusterIPNone, []string{corev1.ClusterIPNone}
	} else {
		g.clusterIPs(spec, families)
		if g.once(4) {
			g.externalIPs(spec)
		}
	}
	if spec.Type == corev1.ServiceTypeLoadBalancer {
		g.loadBalancer(svc)
	}
	g.policies(spec)
	if g.once(20) {
		svc.Labels[labelProxyName] = "another"
	}
	if g.once(25) {
		svc.Labels[labelHeadless] = ""
	}
	if g.once(4) {
		spec.Selector = map[string]string{"app": svc.Name}
	}
	return svc, g.slices(svc)
}

// families decides which address families the Service has, the first one first.
func (g *generator) families(spec *corev1.ServiceSpec) []int {
	all := [][]int{{0, 1}, {0, 1}, {1, 0}, {0}, {1}}[g.IntN(5)]
	names := [...]corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
	spec.IPFamilyPolicy = ptr.To(corev1.IPFamilyPolicySingleStack)
	if len(all) == 2 {
		spec.IPFamilyPolicy = ptr.To(corev1.IPFamilyPolicyRequireDualStack)
	}
	for _, f := range all {
		spec.IPFamilies = append(spec.IPFamilies, names[f])
	}
	return all
}

func (g *generator) clusterIPs(spec *corev1.ServiceSpec, families []int) {
	for _, f := range families {
		spec.ClusterIPs = append(spec.ClusterIPs, g.address(stage.ServiceCIDRs[f]).String())
	}
	spec.ClusterIP = spec.ClusterIPs[0]
}

func (g *generator) ports(spec *corev1.ServiceSpec) {
	n := pick(g, 1, 1, 1, 2, 2, 3)
	used := map[string]bool{}
	for len(spec.Ports) < n {
		p := corev1.ServicePort{
			Protocol:   pick(g, corev1.ProtocolTCP, corev1.ProtocolTCP, corev1.ProtocolUDP),
			Port:       pick[int32](g, 53, 80, 443, 8080),
			TargetPort: intstr.FromInt32(8080),
		}
		if key := fmt.Sprint(p.Protocol, p.Port); used[key] {
			continue
		} else {
			used[key] = true
		}
		if n > 1 || g.once(2) {
			p.Name = fmt.Sprint("p", len(spec.Ports))
		}
		if spec.Type == corev1.ServiceTypeNodePort || spec.Type == corev1.ServiceTypeLoadBalancer {
			p.NodePort = g.nodePort()
		}
		spec.Ports = append(spec.Ports, p)
	}
}

func (g *generator) nodePort() int32 {
	return fresh(g, func() int32 { return 30000 + g.Int32N(2768) })
}

// externalIPs are one or two, of any family, now and then one of n1's own.
func (g *generator) externalIPs(spec *corev1.ServiceSpec) {
	for range 1 + g.IntN(2) {
		f := g.IntN(2)
		a := g.address(stage.VIPs[f])
		if g.once(6) && !g.taken[stage.Second[f]] {
			a = stage.Second[f]
			g.taken[a] = true
		}
		spec.ExternalIPs = append(spec.ExternalIPs, a.String())
	}
}

func (g *generator) loadBalancer(svc *corev1.Service) {
	spec := &svc.Spec
	if g.once(4) {
		spec.AllocateLoadBalancerNodePorts = ptr.To(false)
		if g.once(2) {
			for i := range spec.Ports {
				spec.Ports[i].NodePort = 0
			}
		}
	}
	for range pick(g, 0, 1, 2, 3, 3) {
		f := g.IntN(2)
		in := corev1.LoadBalancerIngress{IP: g.address(stage.VIPs[f]).String()}
		if g.once(6) && !g.taken[stage.LocalVIP[f]] {
			in.IP = stage.LocalVIP[f].String()
			g.taken[stage.LocalVIP[f]] = true
		}
		switch g.IntN(6) {
		case 0:
			in = corev1.LoadBalancerIngress{Hostname: "lb.example.com"}
		case 1:
			in.IPMode = ptr.To(corev1.LoadBalancerIPModeProxy)
		case 2, 3:
			in.IPMode = ptr.To(corev1.LoadBalancerIPModeVIP)
		} // else the API server's default
		svc.Status.LoadBalancer.Ingress = append(svc.Status.LoadBalancer.Ingress, in)
	}
	if g.once(2) {
		g.sourceRanges(spec)
	}
}

// sourceRanges are ranges that some of the vantages are in, in most cases of both
// families.
func (g *generator) sourceRanges(spec *corev1.ServiceSpec) {
	everybody := stage.Pair[netip.Prefix]{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
	for f := range everybody {
		if g.once(4) {
			continue
		}
		for range 1 + g.IntN(2) {
			r := pick(g,
				stage.Clients[f], stage.Clients[f], stage.Strangers[f], stage.ClusterCIDRs[f],
				netip.PrefixFrom(stage.NodeAddress(stage.Node1)[f], everybody[f].Addr().BitLen()),
				netip.PrefixFrom(stage.Second[f], everybody[f].Addr().BitLen()))
			if g.once(12) {
				r = everybody[f]
			}
			spec.LoadBalancerSourceRanges = append(spec.LoadBalancerSourceRanges, r.String())
		}
	}
}

func (g *generator) policies(spec *corev1.ServiceSpec) {
	external := spec.Type != corev1.ServiceTypeClusterIP || len(spec.ExternalIPs) > 0
	if external && g.once(2) {
		spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		if spec.Type == corev1.ServiceTypeLoadBalancer {
			spec.HealthCheckNodePort = g.nodePort()
		}
	}
	if spec.ClusterIP != corev1.ClusterIPNone && g.once(4) {
		spec.InternalTrafficPolicy = ptr.To(corev1.ServiceInternalTrafficPolicyLocal)
	}
	if g.once(4) {
		spec.SessionAffinity = corev1.ServiceAffinityClientIP
		if g.once(2) {
			spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: ptr.To(int32(600 + g.IntN(600)))}}
		}
	}
	if g.once(5) {
		spec.TrafficDistribution = ptr.To(pick(g,
			corev1.ServiceTrafficDistributionPreferClose, corev1.ServiceTrafficDistributionPreferSameZone, corev1.ServiceTrafficDistributionPreferSameNode))
	}
	spec.PublishNotReadyAddresses = g.once(10)
}
