// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestServedByIPVS: what IPVS serves of a frontend and what the table serves, and whether the address is
// among ClusterIPs, while the address is nobody's, the node's own, and another Node's.
func TestServedByIPVS(t *testing.T) {
	const ip = "198.51.100.1"
	spec := func(local bool, external ...string) (s corev1.ServiceSpec) {
		s = corev1.ServiceSpec{ClusterIP: "10.96.0.1", ExternalIPs: external, Ports: []corev1.ServicePort{{Port: 80, NodePort: 30080}}}
		if local {
			s.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		}
		return s
	}
	balancer := []corev1.LoadBalancerIngress{{IP: ip}}
	for _, c := range []struct {
		name                 string
		spec                 corev1.ServiceSpec
		ingress              []corev1.LoadBalancerIngress
		at                   string
		nobody, own, another string
	}{
		{"ClusterIP", spec(false), nil, "10.96.0.1:80", "ipvs, placed", "ipvs, placed", "ipvs, placed"},
		{"NodePort", spec(false), nil, "192.0.2.1:30080", "ipvs", "ipvs", "ipvs"},
		{"local NodePort", spec(true), nil, "192.0.2.1:30080", "table ipvs", "table ipvs", "table ipvs"},
		{"load balancer IP", spec(false), balancer, ip + ":80", "ipvs, placed", "ipvs", "table"},
		{"local load balancer IP", spec(true), balancer, ip + ":80", "table ipvs, placed", "table ipvs", "table table"},
		{"external IP", spec(false, ip), nil, ip + ":80", "table", "ipvs", "table"},
		{"local external IP", spec(true, ip), nil, ip + ":80", "table table", "table ipvs", "table table"},
	} {
		s := New(Config{NodeName: "n1", IPVS: true, NodePorts: NodePortAddresses{CIDRs: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}})
		kernel := newModel()
		check := func(when, want string) {
			t.Helper()
			if err := kernel.apply(s.Change()); err != nil {
				t.Fatalf("%s, %s: %v", c.name, when, err)
			}
			f, text := kernel.frontends[FrontendKey{AddrPort: netip.MustParseAddrPort(c.at), Protocol: TCP}], ""
			for i, id := range f.Pools() {
				text += []string{"", " "}[i] + map[bool]string{true: "ipvs", false: "table"}[kernel.pools[id].ipvs]
			}
			if kernel.sets[ClusterIPs][Address(f.Addr())] {
				text += ", placed"
			}
			if text != want {
				t.Errorf("%s, %s: %q, want %q", c.name, when, text, want)
			}
		}
		own := func(addrs ...string) {
			all := []netip.Addr{netip.MustParseAddr("192.0.2.1")}
			for _, a := range addrs {
				all = append(all, netip.MustParseAddr(a))
			}
			s.SetNodeAddresses(all)
		}
		another := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}, Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeExternalIP, Address: ip}}}}
		own()
		s.SetService(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}, Spec: c.spec,
			Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: c.ingress}}})
		check("nobody's", c.nobody)
		own(ip)
		check("own", c.own)
		own()
		check("nobody's again", c.nobody)
		s.SetNode(another)
		check("another's", c.another)
		own(ip)
		check("own and another's", c.own)
		own()
		check("another's again", c.another)
		s.DeleteNode("n2")
		check("nobody's at last", c.nobody)
	}
}
