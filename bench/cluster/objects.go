// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/collect"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

const (
	PortName   = "http"
	Port       = 80
	TargetPort = 8080

	// SliceSize is the EndpointSlice controller's default limit of endpoints in a slice.
	SliceSize = 100

	// LocalNode is the node that is programmed.
	LocalNode = "node-0"
)

var (
	Services = netip.MustParsePrefix("172.16.0.0/12") // ClusterIPs
	Pods     = netip.MustParsePrefix("10.0.0.0/8")
	Node     = netip.MustParseAddr("192.168.0.1") // of LocalNode

	external = netip.MustParsePrefix("198.18.0.0/15")                                                         // load balancers' addresses
	sources  = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("203.0.113.0/24")} // that may connect to them
)

// reservedIPs are the first addresses of the range of ClusterIPs, which an API server
// assigns itself.
const reservedIPs = 256

// ClusterIP is the address of a Service.
func ClusterIP(service int) netip.Addr { return lab.Nth(Services, service+reservedIPs) }

// podIPs is how many addresses pods have. Added Services may use them up; then they are
// used again, as in a real cluster.
const podIPs = 1<<24 - 2

// PodIP is the address of a pod.
func PodIP(pod int) netip.Addr { return lab.Nth(Pods, pod%podIPs+1) }

// PodAddr is where a pod listens.
func PodAddr(pod int) netip.AddrPort { return netip.AddrPortFrom(PodIP(pod), TargetPort) }

// NamespaceOf is the namespace of a Service.
func (c *Cluster) NamespaceOf(service int) string {
	if c.Namespace != "" {
		return c.Namespace
	}
	return fmt.Sprintf("team-%02d", service%100)
}

// Name is the name of a Service.
func Name(service int) string { return fmt.Sprintf("web-%06d", service) }

// sliceName is as long as one that an API server generates.
func sliceName(service, slice int) string { return fmt.Sprintf("%s-%05d", Name(service), slice) }

func nodeOf(pod, nodes int) string { return fmt.Sprintf("node-%d", pod%nodes) }

var createdAt = metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))

func (c *Cluster) fillService(svc *corev1.Service, service int) {
	ip := ClusterIP(service).String()
	*svc = corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:         c.NamespaceOf(service),
			Name:              Name(service),
			CreationTimestamp: createdAt,
			Labels:            map[string]string{"app": Name(service)},
		},
		Spec: corev1.ServiceSpec{
			Type:                  corev1.ServiceTypeClusterIP,
			ClusterIP:             ip,
			ClusterIPs:            []string{ip},
			Selector:              map[string]string{"app": Name(service)},
			SessionAffinity:       corev1.ServiceAffinityNone,
			IPFamilies:            []corev1.IPFamily{corev1.IPv4Protocol},
			IPFamilyPolicy:        new(corev1.IPFamilyPolicySingleStack),
			InternalTrafficPolicy: new(corev1.ServiceInternalTrafficPolicyCluster),
			Ports: []corev1.ServicePort{{
				Name:       strings.Clone(PortName),
				Protocol:   corev1.ProtocolTCP,
				Port:       Port,
				TargetPort: intstr.FromInt32(TargetPort),
			}},
		},
	}
	if before, is := c.external(service); is {
		fillExternal(svc, before)
	}
}

// fillSlice makes s a slice of a Service with some pods. It uses the memory of the
// endpoints that s had. Strings, which a consumer may keep, are new for each object, as
// they are after decoding.
func (c *Cluster) fillSlice(s *discoveryv1.EndpointSlice, service, slice int, pods []int) {
	endpoints := s.Endpoints[:0]
	*s = discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:         c.NamespaceOf(service),
			Name:              sliceName(service, slice),
			CreationTimestamp: createdAt,
			Labels: map[string]string{
				discoveryv1.LabelServiceName: Name(service),
				discoveryv1.LabelManagedBy:   "endpointslice-controller.k8s.io",
			},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{{
			Name: new(strings.Clone(PortName)), Protocol: new(corev1.ProtocolTCP), Port: new(int32(TargetPort)),
		}},
	}
	for _, pod := range pods {
		node, zone := nodeOf(pod, c.nodes), fmt.Sprintf("zone-%d", pod%3)
		endpoints = append(endpoints, discoveryv1.Endpoint{
			Addresses:  []string{PodIP(pod).String()},
			Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes, Terminating: &no},
			NodeName:   &node,
			Zone:       &zone,
			TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: s.Namespace, Name: fmt.Sprintf("%s-%d", Name(service), pod), UID: uidOf(pod)},
		})
	}
	s.Endpoints = endpoints
}

var yes, no = true, false

// uidOf is as long as any, and as hard to compress.
func uidOf(pod int) types.UID {
	random := rand.NewPCG(uint64(pod), 0)
	a, b := random.Uint64(), random.Uint64()
	return types.UID(fmt.Sprintf("%08x-%04x-%04x-%04x-%012x", a>>32, a>>16&0xffff, a&0xffff, b>>48, b&(1<<48-1)))
}

// External Services are of type LoadBalancer, with all that programs more than a
// ClusterIP: a NodePort, a load balancer's address for certain sources only,
// externalTrafficPolicy Local and session affinity.

const (
	affinitySeconds = 10_800
	firstNodePort   = 2_000
)

// external says whether a Service is external, and how many before it are.
func (c *Cluster) external(service int) (before int, is bool) {
	before = service * c.External / 100
	return before, (service+1)*c.External/100 > before
}

func nodePort(before int) uint16 { return uint16(firstNodePort + before%(2*MaxExternal)) }

func loadBalancerIP(before int) netip.Addr { return lab.Nth(external, before+1) }

func fillExternal(svc *corev1.Service, before int) {
	svc.Spec.Type = corev1.ServiceTypeLoadBalancer
	svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	svc.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	svc.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(int32(affinitySeconds))}}
	svc.Spec.Ports[0].NodePort = int32(nodePort(before))
	svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: loadBalancerIP(before).String()}}
	svc.Spec.LoadBalancerSourceRanges = collect.From(sources, netip.Prefix.String)
}

// One makes one Service of a few ports, and the EndpointSlice of its endpoints, which have the same ports
// unless these have a target.
func One(name string, ip netip.Addr, endpoints []netip.Addr, ports ...corev1.ServicePort) (*corev1.Service, *discoveryv1.EndpointSlice) {
	meta := metav1.ObjectMeta{Namespace: "bench", Name: name}
	svc := &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{ClusterIP: ip.String(), ClusterIPs: []string{ip.String()}, Ports: ports}}
	meta.Labels = map[string]string{discoveryv1.LabelServiceName: name}
	slice := &discoveryv1.EndpointSlice{ObjectMeta: meta, AddressType: discoveryv1.AddressTypeIPv4}
	for _, p := range ports {
		target := cmp.Or(p.TargetPort.IntVal, p.Port)
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &p.Name, Protocol: new(p.Protocol), Port: &target})
	}
	slice.Endpoints = collect.From(endpoints, func(a netip.Addr) discoveryv1.Endpoint { return discoveryv1.Endpoint{Addresses: []string{a.String()}} })
	return svc, slice
}
