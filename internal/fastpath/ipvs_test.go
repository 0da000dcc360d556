// SPDX-License-Identifier: Apache-2.0

package fastpath

import (
	"net/netip"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/ipvs"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestIPVS has a node in IPVS mode. Connections that IPVS translates stay on the slow path, for
// thousands of packets in both directions. Those to an external IP that the node does not have,
// which the table translates, are offloaded.
func TestIPVS(t *testing.T) {
	kerneltest.Require(t, kerneltest.Flowtable, kerneltest.IPVS)
	for _, scope := range []Scope{Services, All} {
		t.Run(string(scope), func(t *testing.T) {
			w := newQuietWorld(t, Flowtable)
			w.check(w.proxy.Cleanup(t.Context()))
			w.state = desired.New(desired.Config{NodeName: "n1", IPVS: true})
			for s := range serviceName {
				w.addService(s)
				w.endpoints(s, w.web[0])
			}
			proxy, err := ipvs.New(dataplane.Config{NetNS: w.node.FD(), MasqueradeBit: dataplane.DefaultMasqueradeBit}, ipvs.Options{})
			w.check(err)
			t.Cleanup(func() { proxy.Close() })
			inTable := desired.FrontendKey{AddrPort: netip.MustParseAddrPort("192.168.100.99:80"), Protocol: desired.TCP}
			w.state.SetService(&corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: serviceName[other]},
				Spec: corev1.ServiceSpec{
					ClusterIP: frontend(desired.TCP, other, false).Addr().String(), ExternalIPs: []string{inTable.Addr().String()},
					Ports: []corev1.ServicePort{{Name: "tcp", Port: webPort}},
				},
			})
			w.check2(proxy.Reconcile(t.Context(), &w.state.Full().Change))
			w.start(Config{Threshold: threshold, Scope: scope})

			var all []*stream
			for _, p := range []lab.Protocol{lab.TCP, lab.UDP} {
				for _, ipv6 := range []bool{false, true} {
					all = append(all, w.streamFrom(w.client, p, web, ipv6, time.Millisecond))
				}
			}
			for _, s := range all {
				w.until("a thousand echoes", func() bool { n := s.Stats(); return n.Received >= 1000 || n.Failed > 0 || n.Ended })
				if f, is := s.flow(); is {
					t.Errorf("%v is offloaded: %+v", s.to, f)
				}
			}
			w.unharmed(all...)
			w.watchSlowPath()
			w.goesOn(all...)
			if original, reply := w.slowPackets(); original > 0 || reply < 4*10 {
				t.Errorf("%d and %d packets passed the hook forward", original, reply)
			}
			w.unharmed(all...)

			translated, err := w.client.Stream(lab.TCP, inTable.AddrPort, interval, lab.Timeout(2*time.Second))
			w.check(err)
			t.Cleanup(func() { translated.Close() })
			s := &stream{translated, w, inTable}
			w.fast(s)
			w.goesOn(s)
			w.unharmed(s)
		})
	}
}
