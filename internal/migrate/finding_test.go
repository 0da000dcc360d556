// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"strings"
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/config"
	"github.com/slipstream-proxy/slipstream/test/kernel/finding"
	corev1 "k8s.io/api/core/v1"
)

// TestIPVSToIPVS checks that the report says what differs between kube-proxy's IPVS mode and Slipstream's.
func TestIPVSToIPVS(t *testing.T) {
	const external = "spec: {clusterIP: 10.96.0.10, externalIPs: [203.0.113.8], ports: [{port: 80}]}"
	for _, c := range []struct{ open, service, want string }{
		{"ipvs 9: migrate does not say that IPVS mode resets connections 15 minutes after their endpoint has left", clusterIP, "15 minutes after"},
		{"ipvs 9: migrate does not say that external IPs lose ipvs.scheduler", external, "203.0.113.8 are chosen at random"},
	} {
		t.Run(c.open, func(t *testing.T) {
			finding.Open(t, c.open)
			r, err := Compare(kubeProxy(t, "mode: ipvs\nipvs: {scheduler: lc}"), Input{Services: []*corev1.Service{parse(t, c.service)}}, []string{config.IPVS})
			if err != nil {
				t.Fatal(err)
			}
			var all []string
			m := r.Modes[0]
			for _, f := range m.Node {
				all = append(all, f.Text)
			}
			for _, s := range m.Services {
				for _, f := range s.Findings {
					all = append(all, f.Text)
				}
			}
			if said := strings.Join(all, "\n"); !strings.Contains(said, c.want) {
				t.Errorf("no %q in:\n%s", c.want, said)
			}
		})
	}
}
