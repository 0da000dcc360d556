// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/slipstream-proxy/slipstream/internal/source"
)

// check compares the faults of an object with the wanted fields and types,
// e.g. "spec.type: Unsupported value", in any order.
func check(t *testing.T, faults field.ErrorList, want ...string) {
	t.Helper()
	var got []string
	for _, f := range faults {
		got = append(got, f.Field+": "+f.Type.String())
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("faults:\n%s\nwant:\n%s\nmessages:\n%v", strings.Join(got, "\n"), strings.Join(want, "\n"), faults.ToAggregate())
	}
}

func clusterIPService() *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec: corev1.ServiceSpec{
			Type:                  corev1.ServiceTypeClusterIP,
			ClusterIP:             "10.96.0.1",
			ClusterIPs:            []string{"10.96.0.1"},
			IPFamilies:            []corev1.IPFamily{corev1.IPv4Protocol},
			SessionAffinity:       corev1.ServiceAffinityNone,
			InternalTrafficPolicy: new(corev1.ServiceInternalTrafficPolicyCluster),
			Ports:                 []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080), Protocol: corev1.ProtocolTCP}},
		},
	}
}

func loadBalancerService() *corev1.Service {
	s := clusterIPService()
	s.Spec.Type = corev1.ServiceTypeLoadBalancer
	s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	s.Spec.HealthCheckNodePort = 32000
	s.Spec.AllocateLoadBalancerNodePorts = new(true)
	s.Spec.LoadBalancerSourceRanges = []string{"192.0.2.0/24", "2001:db8::/32"}
	s.Spec.Ports[0].NodePort = 30080
	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{
		{IP: "192.0.2.10", IPMode: new(corev1.LoadBalancerIPModeVIP)},
		{Hostname: "lb.example.com"},
	}
	return s
}

func externalNameService() *corev1.Service {
	s := clusterIPService()
	s.Spec = corev1.ServiceSpec{
		Type:            corev1.ServiceTypeExternalName,
		ExternalName:    "db.example.com.",
		SessionAffinity: corev1.ServiceAffinityNone,
	}
	return s
}

func TestService(t *testing.T) {
	two := func(s *corev1.Service) {
		s.Spec.Ports = []corev1.ServicePort{
			{Name: "a", Port: 80, TargetPort: intstr.FromString("http"), Protocol: corev1.ProtocolTCP},
			{Name: "b", Port: 81, TargetPort: intstr.FromInt32(81), Protocol: corev1.ProtocolTCP},
		}
	}
	ips := func(ips ...string) func(*corev1.Service) {
		return func(s *corev1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = ips[0], ips }
	}
	for _, c := range []struct {
		name   string
		base   func() *corev1.Service
		change func(*corev1.Service)
		want   []string
	}{
		{"plain", clusterIPService, func(s *corev1.Service) {}, nil},
		{"load balancer", loadBalancerService, func(s *corev1.Service) {}, nil},
		{"external name", externalNameService, func(s *corev1.Service) {}, nil},
		{"name with digit first", clusterIPService, func(s *corev1.Service) { s.Name = "1web" }, nil},

		{"no name", clusterIPService, func(s *corev1.Service) { s.Name = "" }, []string{"metadata.name: Required value"}},
		{"generateName", clusterIPService, func(s *corev1.Service) { s.Name, s.GenerateName = "", "web-" }, []string{"metadata.name: Required value"}},
		{"name not a label", clusterIPService, func(s *corev1.Service) { s.Name = "web.example" }, []string{"metadata.name: Invalid value"}},
		{"namespace not a label", clusterIPService, func(s *corev1.Service) { s.Namespace = "My_NS" }, []string{"metadata.namespace: Invalid value"}},
		{"no namespace", clusterIPService, func(s *corev1.Service) { s.Namespace = "" }, []string{"metadata.namespace: Required value"}},
		{"label", clusterIPService, func(s *corev1.Service) { s.Labels = map[string]string{"a": "b c"} }, []string{"metadata.labels: Invalid value"}},

		{"no type", clusterIPService, func(s *corev1.Service) { s.Spec.Type = "" }, []string{"spec.type: Required value"}},
		{"unknown type", clusterIPService, func(s *corev1.Service) { s.Spec.Type = "Cluster" }, []string{"spec.type: Unsupported value"}},

		{"no ports", clusterIPService, func(s *corev1.Service) { s.Spec.Ports = nil }, []string{"spec.ports: Required value"}},
		{"no ports, headless", clusterIPService, func(s *corev1.Service) { s.Spec.Ports = nil; ips("None")(s); s.Spec.IPFamilies = nil }, nil},
		{"two ports", clusterIPService, two, nil},
		{"port 0", clusterIPService, func(s *corev1.Service) { s.Spec.Ports[0].Port = 0 }, []string{"spec.ports[0].port: Invalid value"}},
		{"port 65535", clusterIPService, func(s *corev1.Service) { s.Spec.Ports[0].Port = 65535 }, nil},
		{"port 65536", clusterIPService, func(s *corev1.Service) { s.Spec.Ports[0].Port = 65536 }, []string{"spec.ports[0].port: Invalid value"}},
		{"no protocol", clusterIPService, func(s *corev1.Service) { s.Spec.Ports[0].Protocol = "" }, []string{"spec.ports[0].protocol: Required value"}},
		{"SCTP", clusterIPService, func(s *corev1.Service) { s.Spec.Ports[0].Protocol = "SCTP" }, nil},
		{"ICMP", clusterIPService, func(s *corev1.Service) { s.Spec.Ports[0].Protocol = "ICMP" }, []string{"spec.ports[0].protocol: Unsupported value"}},
		{"port name not a label", clusterIPService, func(s *corev1.Service) { s.Spec.Ports[0].Name = "HTTP" }, []string{"spec.ports[0].name: Invalid value"}},
		{"second port without a name", clusterIPService, func(s *corev1.Service) { two(s); s.Spec.Ports[1].Name = "" }, []string{"spec.ports[1].name: Required value"}},
		{"same name twice", clusterIPService, func(s *corev1.Service) { two(s); s.Spec.Ports[1].Name = "a" }, []string{"spec.ports[1].name: Duplicate value"}},
		{"same port twice", clusterIPService, func(s *corev1.Service) { two(s); s.Spec.Ports[1].Port = 80 }, []string{"spec.ports[1]: Duplicate value"}},
		{"same port, other protocol", clusterIPService, func(s *corev1.Service) { two(s); s.Spec.Ports[1].Port = 80; s.Spec.Ports[1].Protocol = "UDP" }, nil},
		{"nodePort of ClusterIP", clusterIPService, func(s *corev1.Service) { s.Spec.Ports[0].NodePort = 30000 }, []string{"spec.ports[0].nodePort: Forbidden"}},
		{"nodePort -1", loadBalancerService, func(s *corev1.Service) { s.Spec.Ports[0].NodePort = -1 }, []string{"spec.ports[0].nodePort: Invalid value"}},
		{"nodePort 65536", loadBalancerService, func(s *corev1.Service) { s.Spec.Ports[0].NodePort = 65536 }, []string{"spec.ports[0].nodePort: Invalid value"}},
		{"no nodePort", loadBalancerService, func(s *corev1.Service) { s.Spec.Ports[0].NodePort = 0 }, nil},
		{"same nodePort twice", loadBalancerService, func(s *corev1.Service) {
			two(s)
			s.Spec.Ports[0].NodePort, s.Spec.Ports[1].NodePort = 30000, 30000
		}, []string{"spec.ports[1].nodePort: Duplicate value"}},

		{"no clusterIP", clusterIPService, func(s *corev1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs, s.Spec.IPFamilies = "", nil, nil }, []string{"spec.clusterIP: Required value"}},
		{"clusterIP is a name", clusterIPService, ips("web"), []string{"spec.clusterIPs[0]: Invalid value"}},
		{"clusterIP with zeros", clusterIPService, ips("10.096.0.1"), []string{"spec.clusterIPs[0]: Invalid value"}},
		{"clusterIP mapped", clusterIPService, func(s *corev1.Service) {
			ips("::ffff:10.96.0.1")(s)
			s.Spec.IPFamilies = []corev1.IPFamily{"IPv6"}
		}, []string{"spec.clusterIPs[0]: Invalid value"}},
		{"clusterIP not canonical", clusterIPService, func(s *corev1.Service) {
			ips("FD00:0::1")(s)
			s.Spec.IPFamilies = []corev1.IPFamily{"IPv6"}
		}, nil},
		{"clusterIP is loopback", clusterIPService, ips("127.0.0.1"), []string{"spec.clusterIPs[0]: Invalid value"}},
		{"clusterIP differs", clusterIPService, func(s *corev1.Service) { s.Spec.ClusterIP = "10.96.0.2" }, []string{"spec.clusterIP: Invalid value"}},
		{"no clusterIP, load balancer", loadBalancerService, func(s *corev1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "", nil }, []string{"spec.clusterIP: Required value"}},
		{"second family missing", clusterIPService, func(s *corev1.Service) {
			s.Spec.IPFamilyPolicy = new(corev1.IPFamilyPolicyRequireDualStack)
		}, []string{"spec.clusterIPs[1]: Required value"}},
		{"dual stack", clusterIPService, func(s *corev1.Service) {
			ips("10.96.0.1", "fd00::1")(s)
			s.Spec.IPFamilies = []corev1.IPFamily{"IPv4", "IPv6"}
			s.Spec.IPFamilyPolicy = new(corev1.IPFamilyPolicyRequireDualStack)
		}, nil},
		{"two of one family", clusterIPService, func(s *corev1.Service) {
			ips("10.96.0.1", "10.96.0.2")(s)
			s.Spec.IPFamilies = []corev1.IPFamily{"IPv4", "IPv6"}
		}, []string{"spec.clusterIPs: Invalid value"}},
		{"three", clusterIPService, func(s *corev1.Service) {
			ips("10.96.0.1", "fd00::1", "fd00::2")(s)
			s.Spec.IPFamilies = []corev1.IPFamily{"IPv4", "IPv6"}
		}, []string{"spec.clusterIPs: Too many"}},
		{"None and an address", clusterIPService, func(s *corev1.Service) {
			ips("None", "fd00::1")(s)
			s.Spec.IPFamilies = nil
		}, []string{"spec.clusterIPs[0]: Invalid value"}},
		{"headless load balancer", loadBalancerService, func(s *corev1.Service) { ips("None")(s); s.Spec.IPFamilies = nil }, []string{"spec.clusterIPs[0]: Invalid value"}},

		{"affinity", clusterIPService, func(s *corev1.Service) {
			s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
			s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(int32(86400))}}
		}, nil},
		{"unknown affinity", clusterIPService, func(s *corev1.Service) { s.Spec.SessionAffinity = "Cookie" }, []string{"spec.sessionAffinity: Unsupported value"}},
		{"affinity for 0 s", clusterIPService, func(s *corev1.Service) {
			s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
			s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(int32(0))}}
		}, []string{"spec.sessionAffinityConfig.clientIP.timeoutSeconds: Invalid value"}},
		{"affinity for more than a day", clusterIPService, func(s *corev1.Service) {
			s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
			s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(int32(86401))}}
		}, []string{"spec.sessionAffinityConfig.clientIP.timeoutSeconds: Invalid value"}},

		{"internal policy", clusterIPService, func(s *corev1.Service) {
			s.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicy("Node"))
		}, []string{"spec.internalTrafficPolicy: Unsupported value"}},
		{"external policy", loadBalancerService, func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = "Node"; s.Spec.HealthCheckNodePort = 0 }, []string{"spec.externalTrafficPolicy: Unsupported value"}},
		{"external policy with externalIPs", clusterIPService, func(s *corev1.Service) {
			s.Spec.ExternalTrafficPolicy = "Local"
			s.Spec.ExternalIPs = []string{"192.0.2.1"}
		}, nil},
		{"health check port", loadBalancerService, func(s *corev1.Service) { s.Spec.HealthCheckNodePort = 65536 }, []string{"spec.healthCheckNodePort: Invalid value"}},
		{"distribution", clusterIPService, func(s *corev1.Service) { s.Spec.TrafficDistribution = new("PreferSameNode") }, nil},
		{"unknown distribution", clusterIPService, func(s *corev1.Service) { s.Spec.TrafficDistribution = new("Near") }, []string{"spec.trafficDistribution: Unsupported value"}},

		{"externalIPs", clusterIPService, func(s *corev1.Service) {
			s.Spec.ExternalTrafficPolicy = "Cluster"
			s.Spec.ExternalIPs = []string{"192.0.2.1", "x", "0.0.0.0", "127.0.0.1", "169.254.1.1", "224.0.0.1", "::", "::1", "fe80::1", "ff02::1", "192.0.2.01", "::ffff:192.0.2.1", "fe80::1%eth0"}
		}, []string{
			"spec.externalIPs[1]: Invalid value", "spec.externalIPs[2]: Invalid value", "spec.externalIPs[3]: Invalid value",
			"spec.externalIPs[4]: Invalid value", "spec.externalIPs[5]: Invalid value", "spec.externalIPs[6]: Invalid value",
			"spec.externalIPs[7]: Invalid value", "spec.externalIPs[8]: Invalid value", "spec.externalIPs[9]: Invalid value",
			"spec.externalIPs[10]: Invalid value", "spec.externalIPs[11]: Invalid value", "spec.externalIPs[12]: Invalid value",
		}},
		{"source ranges", loadBalancerService, func(s *corev1.Service) {
			s.Spec.LoadBalancerSourceRanges = []string{"192.0.2.0/24", "192.0.2.1", "192.0.2.1/24", "192.0.2.0/33", "192.0.02.0/24", "::ffff:192.0.2.0/120"}
		}, []string{
			"spec.loadBalancerSourceRanges[1]: Invalid value", "spec.loadBalancerSourceRanges[2]: Invalid value",
			"spec.loadBalancerSourceRanges[3]: Invalid value", "spec.loadBalancerSourceRanges[4]: Invalid value",
			"spec.loadBalancerSourceRanges[5]: Invalid value",
		}},
		{"source ranges with white space", loadBalancerService, func(s *corev1.Service) {
			s.Spec.LoadBalancerSourceRanges = []string{" 192.0.2.0/24", "2001:db8::/32\t", " ", "192.0.2.0 /24"}
		}, []string{"spec.loadBalancerSourceRanges[2]: Invalid value", "spec.loadBalancerSourceRanges[3]: Invalid value"}},
		{"load balancer fields of ClusterIP", clusterIPService, func(s *corev1.Service) {
			s.Spec.LoadBalancerSourceRanges = []string{"192.0.2.0/24"}
		}, []string{"spec.loadBalancerSourceRanges: Forbidden"}},

		{"ingress ip", loadBalancerService, func(s *corev1.Service) { s.Status.LoadBalancer.Ingress[0].IP = "192.0.2.256" }, []string{"status.loadBalancer.ingress[0].ip: Invalid value"}},
		{"ingress mode unknown", loadBalancerService, func(s *corev1.Service) {
			s.Status.LoadBalancer.Ingress[0].IPMode = new(corev1.LoadBalancerIPMode("DNS"))
		}, []string{"status.loadBalancer.ingress[0].ipMode: Unsupported value"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := c.base()
			c.change(s)
			check(t, Validate(s), c.want...)
		})
	}
}

func slice() *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: "web-1.x", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{
			Addresses: []string{"10.0.0.1"},
			NodeName:  new("node-1.example"),
			Zone:      new("zone-a"),
			Hostname:  new("web-0"),
			Hints: &discoveryv1.EndpointHints{
				ForZones: []discoveryv1.ForZone{{Name: "zone-a"}},
				ForNodes: []discoveryv1.ForNode{{Name: "node-1"}},
			},
		}},
		Ports: []discoveryv1.EndpointPort{{Name: new(""), Protocol: new(corev1.ProtocolTCP), Port: new(int32(8080))}},
	}
}

func TestEndpointSlice(t *testing.T) {
	type S = discoveryv1.EndpointSlice
	port := func(name string) discoveryv1.EndpointPort {
		return discoveryv1.EndpointPort{Name: &name, Protocol: new(corev1.ProtocolTCP)}
	}
	for _, c := range []struct {
		name   string
		change func(*S)
		want   []string
	}{
		{"plain", func(s *S) {}, nil},
		{"no ports", func(s *S) { s.Ports = nil }, nil},
		{"no endpoints", func(s *S) { s.Endpoints = nil }, nil},
		{"port without number", func(s *S) { s.Ports[0].Port = nil }, nil},
		{"no label", func(s *S) { s.Labels = nil }, nil},

		{"name", func(s *S) { s.Name = "Web" }, []string{"metadata.name: Invalid value"}},
		{"service-name label", func(s *S) { s.Labels[discoveryv1.LabelServiceName] = "a/b" }, []string{"metadata.labels: Invalid value"}},
		{"no addressType", func(s *S) { s.AddressType = "" }, []string{"addressType: Required value"}},
		{"unknown addressType", func(s *S) { s.AddressType = "IP" }, []string{"addressType: Unsupported value"}},
		{"no address", func(s *S) { s.Endpoints[0].Addresses = nil }, []string{"endpoints[0].addresses: Required value"}},
		{"bad IPv4", func(s *S) {
			s.Endpoints[0].Addresses = []string{"10.0.0", "fd00::1", "0.0.0.0", "127.0.0.1", "169.254.0.1", "224.0.0.1", "10.0.0.01", "::ffff:10.0.0.1", "web"}
		}, []string{
			"endpoints[0].addresses[0]: Invalid value", "endpoints[0].addresses[1]: Invalid value", "endpoints[0].addresses[2]: Invalid value",
			"endpoints[0].addresses[3]: Invalid value", "endpoints[0].addresses[4]: Invalid value", "endpoints[0].addresses[5]: Invalid value",
			"endpoints[0].addresses[6]: Invalid value", "endpoints[0].addresses[7]: Invalid value", "endpoints[0].addresses[8]: Invalid value",
		}},
		{"IPv6", func(s *S) {
			s.AddressType = discoveryv1.AddressTypeIPv6
			s.Endpoints[0].Addresses = []string{"fd00::1", "10.0.0.1", "::1", "fe80::1", "ff02::1", "::"}
		}, []string{
			"endpoints[0].addresses[1]: Invalid value", "endpoints[0].addresses[2]: Invalid value", "endpoints[0].addresses[3]: Invalid value",
			"endpoints[0].addresses[4]: Invalid value", "endpoints[0].addresses[5]: Invalid value",
		}},
		{"FQDN", func(s *S) {
			s.AddressType = discoveryv1.AddressTypeFQDN
			s.Endpoints[0].Addresses = []string{"a.example.com"}
		}, nil},

		{"port 0", func(s *S) { s.Ports[0].Port = new(int32(0)) }, []string{"ports[0].port: Invalid value"}},
		{"port 65536", func(s *S) { s.Ports[0].Port = new(int32(65536)) }, []string{"ports[0].port: Invalid value"}},
		{"protocol", func(s *S) { s.Ports[0].Protocol = new(corev1.Protocol("QUIC")) }, []string{"ports[0].protocol: Unsupported value"}},
		{"port name", func(s *S) { s.Ports[0].Name = new("A") }, []string{"ports[0].name: Invalid value"}},
		{"same port name", func(s *S) { s.Ports = []discoveryv1.EndpointPort{port("a"), port("b"), port("a")} }, []string{"ports[2].name: Duplicate value"}},
		{"two without names", func(s *S) { s.Ports = []discoveryv1.EndpointPort{port(""), port("")} }, []string{"ports[1].name: Duplicate value"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := slice()
			c.change(s)
			check(t, Validate(s), c.want...)
		})
	}
}

func TestNode(t *testing.T) {
	type N = corev1.Node
	for _, c := range []struct {
		name   string
		change func(*N)
		want   []string
	}{
		{"plain", func(n *N) {}, nil},
		{"no CIDR", func(n *N) { n.Spec = corev1.NodeSpec{} }, nil},
		{"name", func(n *N) { n.Name = "Node_1" }, []string{"metadata.name: Invalid value"}},
		{"namespace", func(n *N) { n.Namespace = "default" }, []string{"metadata.namespace: Forbidden"}},
		{"bad", func(n *N) { n.Spec.PodCIDR = "10.0.0.1/24"; n.Spec.PodCIDRs[0] = "10.0.0.1/24" }, []string{"spec.podCIDRs[0]: Invalid value"}},
		{"two of one family", func(n *N) { n.Spec.PodCIDRs[1] = "10.1.0.0/24" }, []string{"spec.podCIDRs: Invalid value"}},
		{"three", func(n *N) { n.Spec.PodCIDRs = append(n.Spec.PodCIDRs, "10.1.0.0/24") }, []string{"spec.podCIDRs: Too many"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := &N{
				ObjectMeta: metav1.ObjectMeta{Name: "node-1.example"},
				Spec:       corev1.NodeSpec{PodCIDR: "10.0.0.0/24", PodCIDRs: []string{"10.0.0.0/24", "fd00:1::/64"}},
			}
			c.change(n)
			check(t, Validate(n), c.want...)
		})
	}
}

func TestServiceCIDR(t *testing.T) {
	type S = networkingv1.ServiceCIDR
	cidrs := func(cidrs ...string) func(*S) { return func(s *S) { s.Spec.CIDRs = cidrs } }
	for _, c := range []struct {
		name   string
		change func(*S)
		want   []string
	}{
		{"plain", func(s *S) {}, nil},
		{"one", cidrs("fd00:96::/112"), nil},
		{"name", func(s *S) { s.Name = "Extra" }, []string{"metadata.name: Invalid value"}},
		{"namespace", func(s *S) { s.Namespace = "default" }, []string{"metadata.namespace: Forbidden"}},
		{"none", cidrs(), []string{"spec.cidrs: Required value"}},
		{"not a range", cidrs("10.96.0.1"), []string{"spec.cidrs[0]: Invalid value"}},
		{"host bits", cidrs("10.96.0.1/16"), []string{"spec.cidrs[0]: Invalid value"}},
		{"not canonical", cidrs("FD00:96::/112"), []string{"spec.cidrs[0]: Invalid value"}},
		{"white space", cidrs(" 10.96.0.0/16"), []string{"spec.cidrs[0]: Invalid value"}},
		{"two of one family", cidrs("10.96.0.0/16", "10.97.0.0/16"), []string{"spec.cidrs: Invalid value"}},
		{"three", cidrs("10.96.0.0/16", "fd00:96::/112", "10.97.0.0/16"), []string{"spec.cidrs: Too many"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &S{
				ObjectMeta: metav1.ObjectMeta{Name: "extra.example"},
				Spec:       networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/16", "fd00:96::/112"}},
			}
			c.change(s)
			check(t, Validate(s), c.want...)
		})
	}
}

func TestObjectUnknown(t *testing.T) {
	if len(Validate(&corev1.Pod{})) == 0 {
		t.Error("a Pod is valid")
	}
}

func TestWarnings(t *testing.T) {
	service := func(base func() *corev1.Service, change func(*corev1.Service)) source.Object {
		s := base()
		change(s)
		return s
	}
	addresses := func(all ...corev1.NodeAddress) source.Object {
		return &corev1.Node{Status: corev1.NodeStatus{Addresses: all}}
	}
	noLabels := slice()
	noLabels.Labels = nil
	for _, c := range []struct {
		name   string
		object source.Object
		want   []string // how each warning starts
	}{
		{"slice with a Service", slice(), nil},
		{"slice without a Service", noLabels, []string{"metadata.labels: without the label kubernetes.io/service-name"}},
		{"ClusterIP", clusterIPService(), nil},
		{"NodePort without one", service(clusterIPService, func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeNodePort }),
			[]string{"spec.ports[0].nodePort: not set"}},
		{"load balancer", loadBalancerService(), nil},
		{"load balancer without node port", service(loadBalancerService, func(s *corev1.Service) { s.Spec.Ports[0].NodePort = 0 }),
			[]string{"spec.ports[0].nodePort: not set"}},
		{"load balancer that wants no node port", service(loadBalancerService, func(s *corev1.Service) {
			s.Spec.Ports[0].NodePort, s.Spec.AllocateLoadBalancerNodePorts = 0, new(false)
		}), nil},
		{"load balancer without health check", service(loadBalancerService, func(s *corev1.Service) { s.Spec.HealthCheckNodePort = 0 }),
			[]string{"spec.healthCheckNodePort: not set"}},
		{"load balancer, policy Cluster", service(loadBalancerService, func(s *corev1.Service) {
			s.Spec.HealthCheckNodePort, s.Spec.ExternalTrafficPolicy = 0, corev1.ServiceExternalTrafficPolicyCluster
		}), nil},
		{"Node", addresses(corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "192.0.2.1"},
			corev1.NodeAddress{Type: corev1.NodeHostName, Address: "node-1"}), nil},
		{"Node with bad addresses", addresses(corev1.NodeAddress{Type: corev1.NodeHostName, Address: "node-1"},
			corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "node-1"},
			corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: "fe80::1%eth0"}),
			[]string{"status.addresses[1].address: ", "status.addresses[2].address: "}},
		{"ServiceCIDR", &networkingv1.ServiceCIDR{}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := warnings(c.object)
			same := slices.EqualFunc(got, c.want, strings.HasPrefix)
			if !same {
				t.Errorf("warnings %q, want %q", got, c.want)
			}
		})
	}
}
