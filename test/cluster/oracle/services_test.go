// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"fmt"
	"net/netip"
	"slices"

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
	for _, name := range []string{Node1, Node2, Node3} {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}}
		if !g.once(6) {
			n.Labels[corev1.LabelTopologyZone] = pick(g, zones[:2]...)
		}
		for _, a := range NodeAddress(name) {
			n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a.String()})
		}
		cidrs := PodCIDR(name)
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
		spec.ClusterIPs = append(spec.ClusterIPs, g.address(ServiceCIDRs[f]).String())
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
		key := fmt.Sprint(p.Protocol, p.Port)
		if used[key] {
			continue
		}
		used[key] = true
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

// externalIPs are one or two, of any family, sometimes including one of n1's own.
func (g *generator) externalIPs(spec *corev1.ServiceSpec) {
	for range 1 + g.IntN(2) {
		f := g.IntN(2)
		a := g.address(VIPs[f])
		if g.once(6) && !g.taken[Second[f]] {
			a = Second[f]
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
		in := corev1.LoadBalancerIngress{IP: g.address(VIPs[f]).String()}
		if g.once(6) && !g.taken[LocalVIP[f]] {
			in.IP = LocalVIP[f].String()
			g.taken[LocalVIP[f]] = true
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
	everyone := Pair[netip.Prefix]{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
	for f := range everyone {
		if g.once(4) {
			continue
		}
		for range 1 + g.IntN(2) {
			r := pick(g,
				Clients[f], Clients[f], Strangers[f], ClusterCIDRs[f],
				netip.PrefixFrom(NodeAddress(Node1)[f], everyone[f].Addr().BitLen()),
				netip.PrefixFrom(Second[f], everyone[f].Addr().BitLen()))
			if g.once(12) {
				r = everyone[f]
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

// maxEndpoints bounds the endpoints of a Service in one family: with more, many more
// connections would be needed to meet each of them.
const maxEndpoints = 4

// slices makes up a Service's EndpointSlices: for each family none, one or two.
func (g *generator) slices(svc *corev1.Service) (all []*discoveryv1.EndpointSlice) {
	hints := g.hinting()
	for f, addressType := range []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6} {
		var endpoints []discoveryv1.Endpoint
		for _, e := range some(g, pick(g, 0, 1, 2, 2, 3, 3, 4, 4), Endpoints) {
			endpoints = append(endpoints, g.endpoint(e, f, hints))
		}
		if len(endpoints) == 0 && g.once(2) {
			continue // no slice at all
		}
		cut := len(endpoints)
		if g.once(3) {
			cut = g.IntN(cut + 1)
		}
		parts := [][]discoveryv1.Endpoint{endpoints[:cut:cut], endpoints[cut:]}
		if cut > 0 && g.once(3) {
			parts[1] = append(parts[1], g.again(endpoints[g.IntN(cut)]))
		}
		for i, part := range parts {
			if len(part) == 0 && i > 0 {
				continue
			}
			s := &discoveryv1.EndpointSlice{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: svc.Namespace,
					Name:      fmt.Sprintf("%s-ipv%d-%d", svc.Name, 4+2*f, i),
					Labels:    map[string]string{discoveryv1.LabelServiceName: svc.Name},
				},
				AddressType: addressType,
				Endpoints:   part,
				// Within a slice, all endpoints have the same ports.
				Ports: g.slicePorts(svc, len(endpoints)),
			}
			if svc.Spec.ClusterIP == corev1.ClusterIPNone || g.once(30) {
				s.Labels[labelHeadless] = ""
			}
			if g.once(30) {
				s.Labels[labelProxyName] = "another"
			}
			all = append(all, s)
		}
	}
	return all
}

// slicePorts are the ports of a slice: those of the Service, by name, sometimes with mistakes.
// A large Service has one target port, to limit its number of backends.
func (g *generator) slicePorts(svc *corev1.Service, endpoints int) (ports []discoveryv1.EndpointPort) {
	for _, p := range svc.Spec.Ports {
		port := discoveryv1.EndpointPort{Name: ptr.To(p.Name), Protocol: ptr.To(p.Protocol), Port: ptr.To(int32(TargetPorts[0]))}
		if 2*endpoints <= maxEndpoints {
			port.Port = ptr.To(int32(pick(g, TargetPorts...)))
		}
		switch g.IntN(30) {
		case 0:
			continue // has no such port
		case 1:
			port.Port = nil // all ports, says the API; kube-proxy does without
		case 2:
			port.Protocol = ptr.To(pick(g, corev1.ProtocolTCP, corev1.ProtocolUDP))
		case 3:
			port.Name = ptr.To("unknown-" + p.Name + "x")
		}
		ports = append(ports, port)
	}
	return ports
}

func (g *generator) endpoint(e Endpoint, family int, h hinting) discoveryv1.Endpoint {
	out := discoveryv1.Endpoint{Addresses: []string{e.Address[family].String()}, NodeName: ptr.To(e.Node)}
	switch {
	case g.once(12):
		out.NodeName = nil
	case g.once(12) && e.Node == Node2:
		out.NodeName = ptr.To(Node3) // as far from n1
	}
	if !g.once(3) {
		out.Conditions.Ready = pick(g, nil, ptr.To(true))
	} else {
		maybe := []*bool{nil, ptr.To(true), ptr.To(false)}
		out.Conditions = discoveryv1.EndpointConditions{Ready: pick(g, maybe...), Serving: pick(g, maybe...), Terminating: pick(g, maybe...)}
	}
	if h.zones && !g.once(h.gap) || g.once(30) {
		out.Hints = &discoveryv1.EndpointHints{}
		for _, z := range some(g, 1+g.IntN(2), zones) {
			out.Hints.ForZones = append(out.Hints.ForZones, discoveryv1.ForZone{Name: z})
		}
	}
	if h.nodes && !g.once(h.gap) {
		if out.Hints == nil {
			out.Hints = &discoveryv1.EndpointHints{}
		}
		out.Hints.ForNodes = []discoveryv1.ForNode{{Name: pick(g, Node1, Node2, Node3)}}
	}
	return out
}

// hinting says which topology hints a Service's endpoints have; one in gap endpoints
// has none, which spoils it for all.
type hinting struct {
	zones, nodes bool
	gap          int
}

func (g *generator) hinting() hinting {
	return hinting{zones: g.once(3), nodes: g.once(4), gap: pick(g, 6, 1000)}
}

// again returns an endpoint that is in two slices: the same, or the one that had the address
// before and is terminating. (kube-proxy does not define the result if several differ that are
// not terminating.)
func (g *generator) again(e discoveryv1.Endpoint) discoveryv1.Endpoint {
	e = *e.DeepCopy()
	if !ptr.Deref(e.Conditions.Terminating, false) && g.once(2) {
		e.Conditions = discoveryv1.EndpointConditions{Ready: ptr.To(false), Serving: ptr.To(g.once(2)), Terminating: ptr.To(true)}
	}
	return e
}
