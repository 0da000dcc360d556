// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"net/http"
	"net/netip"
	"testing"

	"github.com/slipstream-proxy/slipstream/test/cluster/site"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	corev1 "k8s.io/api/core/v1"
)

// TestExternalLocal uses a load balancer's Service with externalTrafficPolicy Local: nodes with
// a pod forward traffic from outside and keep its source; the others drop it, and their health
// check reports it to the load balancer.
func TestExternalLocal(t *testing.T) {
	e := newEnv(t)
	e.startAll()
	here := e.pod(0, "web")
	n1, n2 := e.Nodes[0], e.Nodes[1]
	svc := e.service("web", func(s *corev1.ServiceSpec) {
		s.Type = corev1.ServiceTypeLoadBalancer
		s.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	})
	vip := netip.MustParseAddrPort("203.0.113.7:80")
	_, err := e.patchService(t.Context(), svc.Name, map[string]any{"status": map[string]any{
		"loadBalancer": map[string]any{"ingress": []any{map[string]any{"ip": vip.Addr().String()}}},
	}}, "status")
	e.check(err)
	outside := &e.Outside.Machine
	direct := func(to *site.Node) {
		t.Helper()
		e.check(outside.AddRoute(netip.PrefixFrom(vip.Addr(), 32), to.Addr(false)))
	}
	health := func(n *site.Node, want int) {
		t.Helper()
		url := fmt.Sprintf("http://%v:%d/healthz", n.Addr(false), svc.Spec.HealthCheckNodePort)
		e.until(fmt.Sprintf("%s is answered with %d", url, want), func() error {
			status, body, err := outside.Get(t.Context(), url)
			if err == nil && status != want {
				err = fmt.Errorf("status %d: %s", status, body)
			}
			return err
		})
	}
	direct(n1)
	for _, ipv6 := range families {
		e.seenAs(outside, nodePort(svc, n1, ipv6), here, outside.Addr(ipv6))
		e.silent(outside, nodePort(svc, n2, ipv6))
	}
	e.seenAs(outside, vip, here, outside.Addr(false))
	health(n1, http.StatusOK)
	health(n2, http.StatusServiceUnavailable)
	// From inside the cluster, the policy does not count.
	e.reaches(e.client(1), lab.TCP, vip, here)

	// The pod moves to the other node, and the load balancer follows.
	there := e.pod(1, "web")
	e.check(here.Terminate(t.Context()))
	health(n1, http.StatusServiceUnavailable)
	health(n2, http.StatusOK)
	direct(n2)
	e.seenAs(outside, vip, there, outside.Addr(false))
	e.check(here.Remove(t.Context()))
	e.silent(outside, nodePort(svc, n1, false))
}

// TestInternalLocal uses a Service with internalTrafficPolicy Local: clients reach only pods of
// their own node.
func TestInternalLocal(t *testing.T) {
	e := newEnv(t)
	e.startAll()
	pods := []*runningPod{e.pod(0, "web"), e.pod(1, "web")}
	local := corev1.ServiceInternalTrafficPolicyLocal
	svc := e.service("web", func(s *corev1.ServiceSpec) { s.InternalTrafficPolicy = &local })
	for _, ipv6 := range families {
		for i, pod := range pods {
			e.seenAs(&e.Nodes[i].Machine, clusterIP(svc, ipv6), pod, e.Nodes[i].Addr(ipv6))
			client := e.client(i)
			e.seenAs(client, clusterIP(svc, ipv6), pod, client.Addr(ipv6))
		}
		e.silent(&e.Nodes[2].Machine, clusterIP(svc, ipv6))
	}
	third := e.pod(2, "web")
	e.reaches(&e.Nodes[2].Machine, lab.TCP, clusterIP(svc, false), third)
	e.reaches(&e.Nodes[0].Machine, lab.TCP, clusterIP(svc, false), pods[0])
}
