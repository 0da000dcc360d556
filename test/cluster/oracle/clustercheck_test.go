// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"net/netip"
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

func TestSeedSaysAll(t *testing.T) {
	if !reflect.DeepEqual(RandomCluster(1), RandomCluster(1)) {
		t.Error("one seed, two clusters")
	}
	if reflect.DeepEqual(RandomCluster(1).Services, RandomCluster(2).Services) {
		t.Error("two seeds, one cluster")
	}
}

// TestEverythingComes checks that few random clusters contain all kinds of Services.
func TestEverythingComes(t *testing.T) {
	const clusters = 60
	seen := map[string]int{}
	see := func(what string, is bool) {
		if is {
			seen[what]++
		} else if _, known := seen[what]; !known {
			seen[what] = 0
		}
	}
	for seed := range uint64(clusters) {
		c := RandomCluster(seed)
		see("masquerade all", c.Settings.MasqueradeAll)
		for _, mode := range []string{"ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix"} {
			see(mode, c.Settings.DetectLocalMode == mode)
		}
		see("no cluster CIDR", c.Settings.DetectLocalMode == "ClusterCIDR" && len(c.Settings.ClusterCIDRs) == 0)
		for _, svc := range c.Services {
			spec := &svc.Spec
			see(string(spec.Type), true)
			see("headless", spec.ClusterIP == corev1.ClusterIPNone)
			see("dual stack", len(spec.ClusterIPs) == 2)
			see("several ports", len(spec.Ports) > 1)
			see("external IPs", len(spec.ExternalIPs) > 0)
			see("external policy Local", spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal)
			see("internal policy Local", spec.InternalTrafficPolicy != nil)
			see("affinity", spec.SessionAffinity == corev1.ServiceAffinityClientIP)
			see("source ranges", len(spec.LoadBalancerSourceRanges) > 0)
			see("health check", spec.HealthCheckNodePort != 0)
			see("no node ports", spec.AllocateLoadBalancerNodePorts != nil)
			_, another := svc.Labels[labelProxyName]
			see("another proxy's", another)
			for _, in := range svc.Status.LoadBalancer.Ingress {
				see("hostname", in.Hostname != "")
				see("mode Proxy", in.IPMode != nil && *in.IPMode == corev1.LoadBalancerIPModeProxy)
				see("mode VIP", in.IPMode != nil && *in.IPMode == corev1.LoadBalancerIPModeVIP)
				see("on n1 itself", in.IP == LocalVIP[0].String() || in.IP == LocalVIP[1].String())
			}
		}
		for _, s := range c.Slices {
			see("no endpoints", len(s.Endpoints) == 0)
			for _, p := range s.Ports {
				see("port without number", p.Port == nil)
			}
			for _, e := range s.Endpoints {
				see("not ready", e.Conditions.Ready != nil && !*e.Conditions.Ready)
				see("terminating", e.Conditions.Terminating != nil && *e.Conditions.Terminating)
				see("no node", e.NodeName == nil)
				see("zone hints", e.Hints != nil && len(e.Hints.ForZones) > 0)
				see("node hints", e.Hints != nil && len(e.Hints.ForNodes) > 0)
				see("host network", e.Addresses[0] == NodeAddress(Node1)[0].String())
			}
		}
	}
	for what, n := range seen {
		if n == 0 {
			t.Errorf("%q does not come up in %d clusters", what, clusters)
		}
	}
}

// TestNothingIsShared checks that every frontend belongs to one Service: kube-proxy does not
// define which of several gets it.
func TestNothingIsShared(t *testing.T) {
	for seed := range uint64(200) {
		c := RandomCluster(seed)
		owner := map[string]string{}
		for _, svc := range c.Services {
			addresses := append(append([]string(nil), svc.Spec.ClusterIPs...), svc.Spec.ExternalIPs...)
			for _, in := range svc.Status.LoadBalancer.Ingress {
				addresses = append(addresses, in.IP)
			}
			for _, a := range addresses {
				if _, err := netip.ParseAddr(a); err != nil {
					continue // headless, or a load balancer with a name
				}
				name := svc.Namespace + "/" + svc.Name
				if other, taken := owner[a]; taken {
					t.Errorf("seed %d: %s is of %s and %s", seed, a, other, name)
				}
				owner[a] = name
			}
		}
	}
}

// TestFewBackends checks that no port has more backends than a few connections can reach.
func TestFewBackends(t *testing.T) {
	for seed := range uint64(200) {
		c := RandomCluster(seed)
		for _, svc := range c.Services {
			for _, p := range svc.Spec.Ports {
				for f := range 2 {
					if n := c.Backends(svc, p, f); n > maxEndpoints {
						t.Errorf("seed %d: Service %s/%s, port %q, family %d has %d", seed, svc.Namespace, svc.Name, p.Name, f, n)
					}
				}
			}
		}
	}
}

// TestDuplicatesAgree checks that an endpoint in two slices differs only in ways for which
// kube-proxy defines the result.
func TestDuplicatesAgree(t *testing.T) {
	terminating := func(e discoveryv1.Endpoint) bool {
		return e.Conditions.Terminating != nil && *e.Conditions.Terminating
	}
	twice := 0
	for seed := range uint64(200) {
		seen := map[string]discoveryv1.Endpoint{}
		for _, s := range RandomCluster(seed).Slices {
			for _, e := range s.Endpoints {
				key := s.Namespace + s.Labels[discoveryv1.LabelServiceName] + e.Addresses[0]
				first, again := seen[key]
				seen[key] = e
				if !again {
					continue
				}
				twice++
				if !reflect.DeepEqual(first, e) && terminating(first) == terminating(e) {
					t.Errorf("seed %d: %s: %+v and %+v", seed, key, first, e)
				}
			}
		}
	}
	if twice == 0 {
		t.Error("no endpoint is in two slices")
	}
}

// TestForIPTables checks that few clusters contain all settings of iptables mode, that the seed
// decides, and that objects are not changed.
func TestForIPTables(t *testing.T) {
	seen := map[string]int{}
	for seed := range uint64(30) {
		c, again, plain := RandomCluster(seed), RandomCluster(seed), RandomCluster(seed)
		c.ForIPTables("nft")
		again.ForIPTables("nft")
		if !reflect.DeepEqual(c, again) || !reflect.DeepEqual(c.Services, plain.Services) || !reflect.DeepEqual(c.Slices, plain.Slices) {
			t.Fatalf("seed %d: one seed, two clusters", seed)
		}
		s := c.Settings
		for what, is := range map[string]bool{
			"localhost": s.LocalhostNodePorts, "no localhost": !s.LocalhostNodePorts, "firewall": s.Firewall, "no firewall": !s.Firewall,
			"all": len(s.NodePortAddresses) == 0, "on 127.0.0.1": s.HasNodePorts(netip.MustParseAddr("127.0.0.1")),
			"on the node's own address only": s.HasNodePorts(NodeAddress(Node1)[1]) && !s.HasNodePorts(Second[1]),
		} {
			if is {
				seen[what]++
			}
		}
		if s.HasNodePorts(netip.IPv6Loopback()) {
			t.Errorf("seed %d: node ports on ::1", seed)
		}
	}
	if len(seen) != 7 {
		t.Errorf("came up: %v", seen)
	}
}
