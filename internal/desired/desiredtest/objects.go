// SPDX-License-Identifier: Apache-2.0

// Package desiredtest generates random sequences of events for tests of the desired
// state and of dataplanes: objects that are created, changed and deleted.
package desiredtest

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// There are few objects, so that they interact: Services share addresses and ports,
// slices share endpoints, on two nodes.
const (
	services = 4
	slices   = 6
	cidrs    = 2
	pods     = 3
)

// ThisNode is the name of the node that the desired state is for.
const ThisNode = "here"

const otherNode = "there"

// State is the consumer of events, as implemented by desired.State.
type State interface {
	SetService(*corev1.Service)
	DeleteService(namespace, name string)
	SetEndpointSlice(*discoveryv1.EndpointSlice) (changed bool)
	DeleteEndpointSlice(namespace, name string) (changed bool)
	SetNode(*corev1.Node) (changed bool)
	DeleteNode(name string)
	SetServiceCIDR(*networkingv1.ServiceCIDR)
	DeleteServiceCIDR(name string)
	SetNodeAddresses([]netip.Addr)
	SetPod(*corev1.Pod)
	DeletePod(namespace, name string)
	SetNamespace(*corev1.Namespace)
	DeleteNamespace(name string)
}

// Choices turns input bytes, random or from a fuzzer, into decisions. At the end of the input all decisions are 0.
type Choices struct{ rest []byte }

// NewChoices returns the decisions of an input.
func NewChoices(input []byte) *Choices { return &Choices{rest: input} }

// RandomInput returns n random bytes, which the seed determines.
func RandomInput(seed uint64, n int) []byte {
	r := rand.New(rand.NewPCG(seed, 0))
	input := make([]byte, n)
	for i := range input {
		input[i] = byte(r.Uint32())
	}
	return input
}

// More reports whether there is input left.
func (c *Choices) More() bool { return len(c.rest) > 0 }

// Below chooses a number from 0 to n-1; n is at most 256.
func (c *Choices) Below(n int) int {
	if len(c.rest) == 0 {
		return 0
	}
	b := c.rest[0]
	c.rest = c.rest[1:]
	return int(b) % n
}

func (c *Choices) yes() bool { return c.Below(2) == 1 }

// Objects are the objects as an API server would have them.
type Objects struct {
	services [services]*corev1.Service
	slices   [slices]*discoveryv1.EndpointSlice
	cidrs    [cidrs]*networkingv1.ServiceCIDR
	node     *corev1.Node
	other    *corev1.Node
	pods     [pods]*corev1.Pod
	ns       *corev1.Namespace
	addrs    []netip.Addr
}

// once returns true in one of n cases.
func (c *Choices) once(n int) bool { return c.Below(n) == n-1 }

// portNames are the names and protocols of ports of Services and slices.
var portNames = []struct {
	name     string
	protocol corev1.Protocol
}{{"http", ""}, {"http", corev1.ProtocolTCP}, {"dns", corev1.ProtocolUDP}, {"dns", corev1.ProtocolTCP}, {"", corev1.ProtocolTCP}, {"sig", corev1.ProtocolSCTP}}

// annotations of Services, with values. Ranges overlap, and have ports of other Services.
var annotations = [][]string{
	{"scheduler", "", "rr", "maglev", "maglev,maglev-port", "nearest", "lc"},
	{"local-zone-percent", "0", "30", "100", "nonsense"},
	{"outlier-detection", "on", "on", "report", "nonsense"},
	{"slow-start", "30s", "1h", "nonsense"},
	{"port-ranges", "udp/70-90", "tcp/80-81, udp/1-30080", "all", "tcp/9-1"},
	{"max-connections", "5", "7", "nonsense"},
	{"max-connections-per-client", "3", "0"},
	{"connection-rate-per-client", "5/s", "50/m", "5/h"},
	{"limit-action", "drop", "refuse"},
	{"external-failover", "passthrough", "passthrough", "nonsense"},
}

// service generates a Service. Sometimes it has the addresses of another one.
func (c *Choices) service(i int) *corev1.Service {
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint("svc", i)}}
	if c.once(4) {
		i = c.Below(services)
	}
	svc.CreationTimestamp = metav1.NewTime(time.Unix(int64(1+c.Below(3)), 0))
	v4, v6 := fmt.Sprintf("10.96.0.%d", 1+i), fmt.Sprintf("fd00:96::%x", 1+i)
	svc.Spec.ClusterIPs = [][]string{{v4, v6}, {v6, v4}, {v4}, {v6}}[c.Below(4)]
	switch {
	case c.once(16):
		svc.Spec.ClusterIPs = []string{"None"}
	case c.once(16):
		svc.Spec.Type = corev1.ServiceTypeExternalName
	case c.once(16):
		svc.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": "another"}
	}
	if c.once(3) {
		svc.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
	}
	for range 1 + c.Below(3) {
		p := portNames[c.Below(len(portNames))]
		port := corev1.ServicePort{Name: p.name, Protocol: p.protocol, Port: []int32{80, 81, 30080}[c.Below(3)]}
		if c.once(3) {
			port.NodePort = int32(30080 + c.Below(2))
		}
		svc.Spec.Ports = append(svc.Spec.Ports, port)
	}
	if c.once(2) {
		c.external(svc, i)
	}
	for _, x := range annotations {
		if c.once(6) {
			metav1.SetMetaDataAnnotation(&svc.ObjectMeta, "slipstream.io/"+x[0], x[1+c.Below(len(x)-1)])
		}
	}
	if c.once(4) {
		svc.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		svc.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(int32(10 + c.Below(2)))}}
	}
	return svc
}

// external adds external addresses and policies to a Service. Sometimes they include
// another Service's ClusterIP or an address of this node.
func (c *Choices) external(svc *corev1.Service, i int) {
	ip := func() string {
		return []string{fmt.Sprint("203.0.113.", i), fmt.Sprintf("2001:db8::%x", i), "203.0.113.9", "192.168.0.1", "10.96.0.1", "fd00:96::1"}[c.Below(6)]
	}
	for range c.Below(3) {
		svc.Spec.ExternalIPs = append(svc.Spec.ExternalIPs, ip())
	}
	for range c.Below(3) {
		ingress := corev1.LoadBalancerIngress{IP: ip()}
		ingress.IPMode = []*corev1.LoadBalancerIPMode{nil, new(corev1.LoadBalancerIPModeVIP), new(corev1.LoadBalancerIPModeProxy)}[c.Below(3)]
		svc.Status.LoadBalancer.Ingress = append(svc.Status.LoadBalancer.Ingress, ingress)
	}
	if c.yes() {
		svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	}
	if c.yes() {
		svc.Spec.Type = corev1.ServiceTypeLoadBalancer
		svc.Spec.HealthCheckNodePort = int32(c.Below(3)) * 10001
	}
	for range c.Below(3) {
		ranges := []string{"192.168.0.0/24", "192.168.0.0/16", "10.0.0.0/8", "2001:db8::/32", "fd00::/8", "0.0.0.0/0", "::/0", "nonsense"}
		svc.Spec.LoadBalancerSourceRanges = append(svc.Spec.LoadBalancerSourceRanges, ranges[c.Below(len(ranges))])
	}
}

// zones are names of zones. No node is in the last one.
var zones = []string{"a", "b", "c"}

func (c *Choices) thisNode() *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: ThisNode, Labels: map[string]string{}}}
	if c.once(8) {
		n.Name = otherNode
	}
	if !c.once(4) {
		n.Labels[corev1.LabelTopologyZone] = zones[c.Below(2)]
	}
	n.Status.Addresses = []corev1.NodeAddress{
		{Type: corev1.NodeHostName, Address: "here"},
		{Type: corev1.NodeExternalIP, Address: fmt.Sprint("203.0.113.", 1+c.Below(2))},
		{Type: corev1.NodeInternalIP, Address: fmt.Sprint("192.168.0.", 1+c.Below(2))},
		{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("fd00::%x", 1+c.Below(2))},
	}
	n.Spec.PodCIDRs = []string{fmt.Sprintf("10.244.%d.0/24", c.Below(2)), "fd00:244::/64"}
	return n
}

func (c *Choices) addresses() (all []netip.Addr) {
	for _, text := range []string{"127.0.0.1", "192.168.0.1", "192.168.0.2", "192.168.7.1", "203.0.113.1", "::1", "fd00::1", "fd00::2"} {
		if c.yes() {
			all = append(all, netip.MustParseAddr(text))
		}
	}
	return all
}

// serviceCIDR generates a ServiceCIDR, which may overlap others.
func (c *Choices) serviceCIDR(i int) *networkingv1.ServiceCIDR {
	cidr := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("cidr", i)}}
	cidr.Spec.CIDRs = [][]string{{"10.96.0.0/16"}, {"10.96.0.0/24", "fd00:96::/112"}, {"10.96.1.0/24"}, {"fd00:96::/108"}, {"nonsense"}}[c.Below(5)]
	return cidr
}

func (c *Choices) slice(i int) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: fmt.Sprint("slice", i),
			Labels: map[string]string{discoveryv1.LabelServiceName: fmt.Sprint("svc", c.Below(services))},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	if c.once(4) {
		s.Annotations = map[string]string{"slipstream.io/weight": []string{"0", "1", "10", "90", "101"}[c.Below(5)]}
	}
	if c.once(3) {
		s.AddressType = discoveryv1.AddressTypeIPv6
	} else if c.once(20) {
		s.AddressType = discoveryv1.AddressTypeFQDN
	}
	for range 1 + c.Below(4) {
		p := portNames[c.Below(len(portNames))]
		port := discoveryv1.EndpointPort{Port: new(int32(8080 + c.Below(2)))}
		if p.name != "" {
			port.Name = &p.name
		}
		if p.protocol != "" {
			port.Protocol = &p.protocol
		}
		s.Ports = append(s.Ports, port)
	}
	n := c.Below(6)
	if c.once(4) { // pools cross the size from which they keep an index
		n = 20 + c.Below(20)
	}
	for range n {
		s.Endpoints = append(s.Endpoints, c.endpoint(s.AddressType))
	}
	return s
}

// endpoint generates an endpoint. There are few addresses, so that slices share them.
func (c *Choices) endpoint(t discoveryv1.AddressType) discoveryv1.Endpoint {
	format := map[discoveryv1.AddressType]string{
		discoveryv1.AddressTypeIPv4: "10.0.0.%d", discoveryv1.AddressTypeIPv6: "fd00::%x", discoveryv1.AddressTypeFQDN: "host%d.example",
	}[t]
	addresses := 8
	if c.once(3) {
		addresses = 60
	}
	e := discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf(format, 1+c.Below(addresses))}}
	conditions := c.Below(8)
	if conditions&1 != 0 {
		e.Conditions.Ready = new(c.yes())
	}
	if conditions&2 != 0 {
		e.Conditions.Serving = new(c.yes())
	}
	if conditions&4 != 0 {
		e.Conditions.Terminating = new(c.yes())
	}
	if c.once(2) {
		e.Hints = &discoveryv1.EndpointHints{}
		for range c.Below(3) {
			e.Hints.ForZones = append(e.Hints.ForZones, discoveryv1.ForZone{Name: zones[c.Below(len(zones))]})
		}
		for range c.Below(2) {
			e.Hints.ForNodes = append(e.Hints.ForNodes, discoveryv1.ForNode{Name: []string{ThisNode, "there"}[c.Below(2)]})
		}
	}
	if c.yes() {
		e.Zone = &zones[c.Below(len(zones))]
	}
	e.NodeName = []*string{nil, new(ThisNode), new("there")}[c.Below(3)]
	return e
}

func (c *Choices) edit(s *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	s = s.DeepCopy()
	n := len(s.Endpoints)
	switch {
	case n == 0 || c.once(3):
		s.Endpoints = append(s.Endpoints, c.endpoint(s.AddressType))
	case c.yes():
		i := c.Below(n)
		s.Endpoints = append(s.Endpoints[:i], s.Endpoints[i+1:]...)
	default:
		s.Endpoints[c.Below(n)] = c.endpoint(s.AddressType)
	}
	return s
}

// metadata generates the metadata of an object that may opt out of the fast path.
func (c *Choices) metadata(namespace, name string) metav1.ObjectMeta {
	value := []string{"on", "off"}[c.Below(2)]
	return metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: map[string]string{"slipstream.io/fast-path": value}}
}

// pod generates a pod. There are few addresses, so that pods share them.
func (c *Choices) pod(i int) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: c.metadata("ns", fmt.Sprint("pod", i))}
	for _, format := range []string{"10.0.0.%d", "fd00::%x"} {
		if !c.once(4) {
			p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: fmt.Sprintf(format, 1+c.Below(4))})
		}
	}
	return p
}

// optOutStep changes or deletes a pod or the Namespace.
func (o *Objects) optOutStep(c *Choices, s State) {
	i, exists := c.Below(pods+1), !c.once(4)
	switch {
	case i < pods && exists:
		o.pods[i] = c.pod(i)
		s.SetPod(o.pods[i])
	case i < pods:
		o.pods[i] = nil
		s.DeletePod("ns", fmt.Sprint("pod", i))
	case exists:
		o.ns = &corev1.Namespace{ObjectMeta: c.metadata("", "ns")}
		s.SetNamespace(o.ns)
	default:
		o.ns = nil
		s.DeleteNamespace("ns")
	}
}

// Step makes a random change to the objects and applies it to the state.
func (o *Objects) Step(c *Choices, s State) {
	what, service, slice := c.Below(22), c.Below(services), c.Below(slices)
	switch {
	case what == 16:
		o.addrs = c.addresses()
		s.SetNodeAddresses(o.addrs)
	case what == 17:
		o.nodeStep(c, s)
	case what == 18:
		i := c.Below(cidrs)
		o.cidrs[i] = c.serviceCIDR(i)
		s.SetServiceCIDR(o.cidrs[i])
	case what == 19:
		i := c.Below(cidrs)
		o.cidrs[i] = nil
		s.DeleteServiceCIDR(fmt.Sprint("cidr", i))
	case what >= 20:
		o.optOutStep(c, s)
	case what == 0:
		o.services[service] = nil
		s.DeleteService("ns", fmt.Sprint("svc", service))
	case what == 1:
		o.slices[slice] = nil
		s.DeleteEndpointSlice("ns", fmt.Sprint("slice", slice))
	case what < 5:
		o.services[service] = c.service(service)
		s.SetService(o.services[service])
	case what < 10 && o.slices[slice] != nil:
		o.slices[slice] = c.edit(o.slices[slice])
		s.SetEndpointSlice(o.slices[slice])
	default:
		o.slices[slice] = c.slice(slice)
		s.SetEndpointSlice(o.slices[slice])
	}
}

// nodeStep changes or deletes this node's Node or another one. The state ignores the deletion of this node's.
func (o *Objects) nodeStep(c *Choices, s State) {
	n := c.thisNode()
	switch exists := !c.once(4); {
	case !exists:
		s.DeleteNode(n.Name)
		if n.Name != ThisNode {
			o.other = nil
		}
		return
	case n.Name == ThisNode:
		o.node = n
	default:
		o.other = n
	}
	s.SetNode(n)
}

// SetAll adds all objects to a state, in random order.
func (o *Objects) SetAll(s State, order *rand.Rand) {
	sets := []func(){func() { s.SetNodeAddresses(o.addrs) }}
	add(&sets, s.SetService, o.services[:]...)
	add(&sets, func(sl *discoveryv1.EndpointSlice) { s.SetEndpointSlice(sl) }, o.slices[:]...)
	add(&sets, s.SetServiceCIDR, o.cidrs[:]...)
	add(&sets, s.SetPod, o.pods[:]...)
	add(&sets, s.SetNamespace, o.ns)
	add(&sets, func(n *corev1.Node) { s.SetNode(n) }, o.node, o.other)
	order.Shuffle(len(sets), func(i, j int) { sets[i], sets[j] = sets[j], sets[i] })
	for _, set := range sets {
		set()
	}
}

// add appends a call of set for each of the objects that exist.
func add[T any](sets *[]func(), set func(*T), objects ...*T) {
	for _, o := range objects {
		if o != nil {
			*sets = append(*sets, func() { set(o) })
		}
	}
}
