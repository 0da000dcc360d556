// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// labelProxyName assigns a Service to another proxy, whatever its value. The label is ignored on slices. (The label for
// headless Services is ignored on Services, because their clusterIP says whether they are headless.)
const labelProxyName = "service.kubernetes.io/service-proxy-name"

// service is the record of a Service: its spec, and the slices that refer to it. The slices may precede the Service.
type service struct {
	name   types.NamespacedName
	wanted *serviceSpec // nil while there is no Service to proxy
	spec   *serviceSpec // wanted, or nil if the Service is left out
	ports  []*port
	slices []*slice
	health *healthState // nil for most

	slots    int           // that its algorithm and weights need
	backends [families]int // that slices have at most for the wanted ports
	refused  bool          // by the kernel

	unlimited bool // there is no room for its limits
}

// serviceSpec is the part of a Service's spec and status that the proxy uses.
type serviceSpec struct {
	created    int64 // Unix time in seconds
	clusterIPs []netip.Addr
	external   []externalAddr // in families of clusterIPs
	ports      []*port        // of service.ports, or new
	policy     policy
	affinity   uint32 // seconds; 0 for none
	slowStart  time.Duration
	detection  string // AnnotationOutliers
	healthPort uint16 // 0 for none
	slowPath   bool   // connections do not take the fast path
	failsOver  bool   // AnnotationFailover
	portRanges int    // how many of ports are ranges
	limits     Limits
	closed     bool // one of ranges is invalid
	Scheduler
	open      [families]bool // one of ranges contains all addresses
	scheduler string         // of IPVS; "" for the node's

	// ranges are loadBalancerSourceRanges by family, disjoint and in order; empty if all clients may connect. sources
	// are the ranges that follow from them on this node.
	ranges  [families][]netip.Prefix
	sources [families]*SourceRanges
}

// externalAddr is an address of a Service other than its ClusterIPs.
type externalAddr struct {
	kind AddressKind
	ip   netip.Addr
}

// portID identifies a port of a Service. A port whose portID changes is a new port, with new endpoints and pools.
type portID struct {
	name     string
	protocol Protocol
	number   uint16
	sticky   bool   // the Service has session affinity
	shared   bool   // and ranges
	last     uint16 // of a range that begins with number; 0 for one port
}

type port struct {
	portID
	nodePort  uint16  // 0 for none
	parts     *[]Part // of a range at a ClusterIP
	name      ServicePort
	service   *service
	endpoints [families]*endpoints // nil without addresses of the family

	external, restricted *[]Part // at other addresses, without and with source ranges
}

// same reports whether two specs are of versions of a Service that do not differ here.
func (spec *serviceSpec) same(as *serviceSpec) bool {
	a, b := *spec, *as
	a.ports, a.sources, b.ports = nil, b.sources, nil
	return reflect.DeepEqual(a, b) && slices.EqualFunc(spec.ports, as.ports, func(p, q *port) bool {
		return p.portID == q.portID && p.nodePort == q.nodePort && (p.parts == nil || slices.Equal(*p.parts, *q.parts))
	})
}

// has reports whether the Service has addresses of a family. Without a ClusterIP in a
// family, the Service has no frontends in that family.
func (spec *serviceSpec) has(f Family) bool {
	return slices.ContainsFunc(spec.clusterIPs, func(ip netip.Addr) bool { return FamilyOf(ip) == f })
}

// compactService extracts the serviceSpec. It returns nil for a Service that this proxy does not handle.
func (s *State) compactService(in *corev1.Service) *serviceSpec {
	if _, otherProxy := in.Labels[labelProxyName]; otherProxy || in.Spec.Type == corev1.ServiceTypeExternalName {
		return nil
	}
	out := &serviceSpec{policy: policy{
		internalLocal: ptr.Deref(in.Spec.InternalTrafficPolicy, "") == corev1.ServiceInternalTrafficPolicyLocal,
		externalLocal: in.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal,
	}}
	if t := in.CreationTimestamp; !t.IsZero() {
		out.created = t.Unix()
	}
	ips := in.Spec.ClusterIPs
	if len(ips) == 0 {
		ips = []string{in.Spec.ClusterIP}
	}
	for i, text := range ips {
		if text == "" || text == corev1.ClusterIPNone {
			return nil // headless
		}
		if ip, ok := s.address(in, fmt.Sprintf("spec.clusterIPs[%d]", i), text); ok && !s.config.Without[FamilyOf(ip)] && !slices.Contains(out.clusterIPs, ip) {
			out.clusterIPs = append(out.clusterIPs, ip)
		}
	}
	if fastPath := in.Annotations[AnnotationFastPath]; fastPath != "" {
		out.slowPath = fastPath == "off"
		s.fastPathProblem(ProblemOf(types.NamespacedName{Namespace: in.Namespace, Name: in.Name}, "", ""), fastPath)
	}
	s.schedule(out, in)
	out.slowStart, out.detection = s.slowStart(in), s.detection(in)
	s.failover(out, in)
	out.limits = s.limits(in)
	s.externalAddrs(out, in)
	s.sourceRanges(out, in)
	if in.Spec.SessionAffinity == corev1.ServiceAffinityClientIP {
		out.affinity = affinitySeconds(in)
	}
	if n := in.Spec.HealthCheckNodePort; in.Spec.Type == corev1.ServiceTypeLoadBalancer && out.policy.externalLocal && n > 0 && n < 1<<16 {
		out.healthPort = uint16(n)
	}
	s.portRanges(out, in)
	ids := map[portID]bool{} // of what clients and slices distinguish ports by: numbers, and names
	for i, p := range in.Spec.Ports {
		port := &port{portID: portID{name: p.Name, protocol: protocols[p.Protocol], number: uint16(p.Port), sticky: out.affinity != 0, shared: out.affinity != 0 && out.portRanges > 0}, nodePort: uint16(p.NodePort)}
		switch {
		case port.protocol == 0:
			s.serviceProblem(in, fmt.Sprintf("spec.ports[%d].protocol", i), "no such protocol: "+string(p.Protocol))
		case p.Port < 1 || p.Port >= 1<<16:
			s.serviceProblem(in, fmt.Sprintf("spec.ports[%d].port", i), fmt.Sprintf("not a port number: %d", p.Port))
		case p.NodePort < 0 || p.NodePort >= 1<<16:
			s.serviceProblem(in, fmt.Sprintf("spec.ports[%d].nodePort", i), fmt.Sprintf("not a port number: %d", p.NodePort))
		case ids[portID{protocol: port.protocol, number: port.number}], ids[portID{protocol: port.protocol, name: p.Name}]:
			s.serviceProblem(in, fmt.Sprintf("spec.ports[%d]", i), "the Service has a port of that name or number already")
		default:
			ids[portID{protocol: port.protocol, number: port.number}], ids[portID{protocol: port.protocol, name: p.Name}] = true, true
			out.ports = append(out.ports, port)
		}
	}
	for _, r := range out.ports[:out.portRanges] {
		r.parts, r.external, r.restricted = r.divide(out.ports[out.portRanges:]), r.inTurn(ExternalTurn), r.inTurn(RestrictedTurn)
	}
	return out
}

// address parses an address of a Service. It reports a Problem for an address that cannot be used.
func (s *State) address(in *corev1.Service, field, text string) (ip netip.Addr, ok bool) {
	switch ip, ok = parseAddr(text); {
	case !ok:
		s.serviceProblem(in, field, "not an IP address: "+text)
	case !canBeReached(ip):
		s.serviceProblem(in, field, "an address that no Service can have: "+text)
		return ip, false
	}
	return ip, ok
}

// externalAddrs parses spec.externalIPs and status.loadBalancer.ingress. Addresses of
// load balancers that are proxies (ipMode Proxy, KEP-1860) are left out.
func (s *State) externalAddrs(out *serviceSpec, in *corev1.Service) {
	seen := map[externalAddr]bool{}
	add := func(kind AddressKind, field, text string) {
		ip, ok := s.address(in, field, text)
		switch a := (externalAddr{kind, ip}); {
		case !ok || seen[a]:
		case out.has(FamilyOf(ip)):
			seen[a] = true
			out.external = append(out.external, a)
		}
	}
	externalIPs := in.Spec.ExternalIPs
	if s.config.NoExternalIPs {
		externalIPs = nil
	}
	for i, text := range externalIPs {
		field := fmt.Sprintf("spec.externalIPs[%d]", i)
		ip, ok := parseAddr(text)
		if ranges := s.config.ExternalIPs; ok && len(ranges) > 0 && !slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(ip) }) {
			s.serviceProblem(in, field, text+" is in none of the node's externalIPRanges")
			continue
		}
		add(ExternalIP, field, text)
	}
	for i, ingress := range in.Status.LoadBalancer.Ingress {
		if m := ingress.IPMode; ingress.IP == "" || m != nil && *m != corev1.LoadBalancerIPModeVIP {
			continue
		}
		add(LoadBalancerIP, fmt.Sprintf("status.loadBalancer.ingress[%d].ip", i), ingress.IP)
	}
}

// affinitySteps are the steps of timeouts of session affinity, in seconds. There are at most 250 timeouts, because each
// costs rules in nftables mode.
var affinitySteps = [...]struct{ upTo, step uint32 }{{60, 1}, {300, 5}, {1800, 30}, {18000, 300}, {86400, 1800}}

// affinitySeconds returns the timeout of session affinity, by default the API's, rounded up to the next step.
func affinitySeconds(in *corev1.Service) uint32 {
	c := in.Spec.SessionAffinityConfig
	if c == nil || c.ClientIP == nil || c.ClientIP.TimeoutSeconds == nil || *c.ClientIP.TimeoutSeconds <= 0 {
		return uint32(corev1.DefaultClientIPServiceAffinitySeconds)
	}
	seconds := uint32(*c.ClientIP.TimeoutSeconds)
	for _, s := range affinitySteps {
		if seconds <= s.upTo {
			return (seconds + s.step - 1) / s.step * s.step
		}
	}
	return 86400 // the API does not have more
}

func (s *State) serviceProblem(in *corev1.Service, field, reason string) {
	s.addProblem(ProblemOf(types.NamespacedName{Namespace: in.Namespace, Name: in.Name}, field, reason))
}

// ProblemOf is a problem of a Service.
func ProblemOf(service types.NamespacedName, field, reason string) Problem {
	return Problem{Object: "Service " + service.String(), Field: field, Reason: reason, Service: service}
}
