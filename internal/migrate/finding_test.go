// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/config"
	corev1 "k8s.io/api/core/v1"
)

// TestSchedulerOfExternalIPs: from IPVS mode to Slipstream's, external IPs that no interface has lose the scheduler.
func TestSchedulerOfExternalIPs(t *testing.T) {
	const external = "spec: {clusterIP: 10.96.0.10, externalIPs: [203.0.113.8], ports: [{port: 80}]}"
	for _, on := range []bool{false, true} {
		in := Input{Services: []*corev1.Service{parse(t, external)}}
		if on {
			in.Addresses = []netip.Addr{netip.MustParseAddr("203.0.113.8")}
		}
		r, err := Compare(kubeProxy(t, "mode: ipvs\nipvs: {scheduler: lc}"), in, []string{config.IPVS})
		if err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, s := range r.Modes[0].Services {
			for _, f := range s.Findings {
				all = append(all, f.Text)
			}
		}
		if said := strings.Join(all, "\n"); strings.Contains(said, "203.0.113.8 are chosen at random") == on {
			t.Errorf("on an interface: %t, findings:\n%s", on, said)
		}
	}
}
