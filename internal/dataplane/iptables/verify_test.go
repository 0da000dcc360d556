// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/dataplanetest"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestVerifyRules damages chains, rules and sets, which a process that has not written them finds.
func TestVerifyRules(t *testing.T) {
	eachVariant(t, func(t *testing.T, v Variant) {
		k := newKernel(t, v)
		s := desired.New(desired.Config{})
		s.SetNodeAddresses([]netip.Addr{netip.MustParseAddr("192.168.0.1")})
		for i := range 20 {
			web(s, i, 1, 2)
		}
		s.SetService(&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "balanced"},
			Spec: corev1.ServiceSpec{
				Type: corev1.ServiceTypeLoadBalancer, ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal,
				HealthCheckNodePort: 32000, ClusterIPs: []string{"10.96.9.9"}, Ports: []corev1.ServicePort{{Port: 80}},
			},
		})
		for _, c := range []struct{ damage, want string }{
			{"iptables -t nat -F SLIP-MASQUERADE", "table nat: chain SLIP-MASQUERADE was modified"},
			{"iptables -t nat -I SLIP-SERVICES -j ACCEPT", "chain SLIP-SERVICES was modified"},
			{"iptables -t nat -I SLIP-SERVICES -m set --match-set SLIP-4-CLUSTER-IPS dst -j ACCEPT", "chain SLIP-SERVICES was modified"},
			{"iptables -I SLIP-FORWARD -j DROP", "table filter: chain SLIP-FORWARD was modified"},
			{"iptables -R SLIP-FORWARD 1 -j DROP", "chain SLIP-FORWARD was modified"},
			{"iptables -D FORWARD -j SLIP-FORWARD", "there is no rule FORWARD -j SLIP-FORWARD"},
			{"iptables -A FORWARD -s 10.0.0.1 -j SLIP-FORWARD", "a rule does not belong there: FORWARD -s 10.0.0.1/32 -j SLIP-FORWARD"},
			{"iptables -t nat -N SLIP-OTHER", "chain SLIP-OTHER does not belong there"},
			{"iptables -t nat -I $(chain SLIP-BR-) -j ACCEPT", "chain SLIP-BR-"},
			{"iptables -t nat -I $(chain SLIP-SVC-) -j ACCEPT", "a rule for an endpoint that"},
			{"to=$(iptables -t nat -S $(chain SLIP-SVC-) | sed -n 's/.*--to-destination //p' | tail -1); iptables -t nat -R $(chain SLIP-SVC-) 2 -p tcp -s 10.0.0.1 -j DNAT --to-destination $to", "a rule for an endpoint that does more"},
			{"ipset del SLIP-4-HEALTH-CHECKS 32000; ipset add SLIP-4-HEALTH-CHECKS 31999", "SLIP-4-HEALTH-CHECKS lacks"},
		} {
			t.Run(c.damage, func(t *testing.T) {
				dataplanetest.Reconcile(t, k.Dataplane, s)
				reader := k.open(v)
				defer reader.Close()
				dataplanetest.Has(t, reader, s)
				k.run("iptables() { command iptables-" + string(v) + ` "$@"; }; chain() { iptables -t nat -S | sed -n "s/^-N \($1.*\)/\1/p" | head -1; }; ` + c.damage)
				verified, err := dataplane.Look(t.Context(), reader, &s.Full().Change)
				if err != nil || !strings.Contains(verified.String(), c.want) {
					t.Errorf("error %v, no %q in\n%s", err, c.want, verified)
				}
			})
		}
	})
}
