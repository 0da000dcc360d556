// SPDX-License-Identifier: Apache-2.0

package dataplanetest

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Rejected sends connections that a dataplane rejects, one for each reason, and compares the
// numbers of packets in read. rewrite has the dataplane write its rules again, which loses none.
func Rejected(t *testing.T, s *Street, b dataplane.Dataplane, read func() (dataplane.Rejected, error), rewrite func(*desired.State)) {
	t.Helper()
	state := desired.New(desired.Config{NodeName: "n1"})
	state.SetServiceCIDR(&networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/16"}}})
	web := Service(corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, LoadBalancerSourceRanges: []string{"172.16.0.0/12"}})
	web.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}
	state.SetService(web)
	state.SetEndpointSlice(Slice(0))
	for i, name := range []string{"empty", "remote"} {
		state.SetService(&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
			Spec: corev1.ServiceSpec{
				ClusterIP: fmt.Sprint("10.96.0.", 2+i), Ports: []corev1.ServicePort{{Port: 80}},
				InternalTrafficPolicy: new([]corev1.ServiceInternalTrafficPolicy{corev1.ServiceInternalTrafficPolicyCluster, corev1.ServiceInternalTrafficPolicyLocal}[i]),
			},
		})
	}
	remote := Slice(0)
	remote.Name, remote.Labels = "remote-1", map[string]string{discoveryv1.LabelServiceName: "remote"}
	remote.Endpoints[0].NodeName = new("n2")
	state.SetEndpointSlice(remote)
	Reconcile(t, b, state)

	connections := []struct{ to, reason, outcome string }{
		{"10.96.0.1:81", dataplane.UnknownPort, "refused"},
		{"10.96.0.2:80", dataplane.NoEndpoints, "refused"},
		{"10.96.0.3:80", dataplane.NoLocalEndpoints, "timeout"},
		{"10.96.0.99:80", dataplane.UnallocatedAddress, "timeout"},
		{"192.0.2.1:80", dataplane.SourceNotAllowed, "timeout"},
		{"10.96.0.1:80", "", "ok"},
	}
	counts := func() map[string]uint64 {
		t.Helper()
		n, err := read()
		if err != nil || len(n[desired.IPv4]) != len(connections)-1 {
			t.Fatalf("%v, error %v", n, err)
		}
		return n[desired.IPv4]
	}
	before := counts()
	for round := range 2 {
		for _, c := range connections {
			wait := 10 * time.Second
			if c.outcome == "timeout" {
				wait = 300 * time.Millisecond
			}
			_, err := s.Client.Connect(lab.TCP, netip.MustParseAddrPort(c.to), lab.Timeout(wait))
			if got := lab.Outcome(err); got != c.outcome {
				t.Errorf("to %s: %s, want %s", c.to, got, c.outcome)
			}
			now := counts()
			for reason, n := range now {
				if grown := n > before[reason]; grown != (reason == c.reason) || reason == c.reason && c.outcome == "refused" && n != before[reason]+1 {
					t.Errorf("round %d, after a connection to %s: %d packets with reason %s after %d", round, c.to, n, reason, before[reason])
				}
			}
			before = now
		}
		rewrite(state)
		if now := counts(); fmt.Sprint(now) != fmt.Sprint(before) {
			t.Errorf("after the rules were written again: %v, before %v", now, before)
		}
	}
}
