// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"flag"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/test/cluster/proxies"
	"github.com/slipstream-proxy/slipstream/test/cluster/site"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

var rangeTurns = flag.Int("range-turns", 1, "how often TestRangeBesideKubeProxy measures each proxy")

// TestRangeBesideKubeProxy serves UDP 10000 to 20000 of a Service: Slipstream by a range, kube-proxy by 10,001 ports. It
// logs medians of the time from the API server's reply to a new Service until its last port is served. Only one proxy runs.
func TestRangeBesideKubeProxy(t *testing.T) {
	const first, last = 10000, 20000
	e := newEnv(t)
	pod, client, n := e.pod(0, "media"), e.client(0), e.Nodes[0]
	_, err := pod.Serve(lab.UDP, netip.AddrPortFrom(pod.Addrs()[0], last))
	e.check(err)
	slicesOf := e.Plane.Client.DiscoveryV1().EndpointSlices(site.Namespace)
	took := map[proxies.Kind][]time.Duration{}
	for range *rangeTurns {
		for _, kind := range []proxies.Kind{proxies.Slipstream, proxies.KubeProxyNFTables} {
			p := e.start(kind, n)
			svc := &corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Name: e.name("media"), Annotations: map[string]string{desired.AnnotationPortRanges: fmt.Sprintf("udp/%d-%d", first, last)}},
				Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "p9", Port: 9, Protocol: corev1.ProtocolUDP}}},
			}
			slice := &discoveryv1.EndpointSlice{
				ObjectMeta:  metav1.ObjectMeta{Name: svc.Name, Labels: map[string]string{discoveryv1.LabelServiceName: svc.Name}},
				AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{pod.Addrs()[0].String()}}},
			}
			if !kind.IsSlipstream() {
				svc.Annotations, svc.Spec.Ports = nil, nil
				for port := int32(first); port <= last; port++ {
					svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", port), Port: port, Protocol: corev1.ProtocolUDP})
				}
			}
			for _, port := range svc.Spec.Ports {
				slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &port.Name, Port: &port.Port, Protocol: ptr.To(corev1.ProtocolUDP)})
			}
			_, err = slicesOf.Create(t.Context(), slice, metav1.CreateOptions{})
			e.check(err)
			time.Sleep(2 * time.Second) // the longest time between two syncs, so that this one does not wait
			svc, err = e.Plane.Client.CoreV1().Services(site.Namespace).Create(t.Context(), svc, metav1.CreateOptions{})
			e.check(err)
			start, to := time.Now(), netip.AddrPortFrom(clusterIP(svc, false).Addr(), last)
			e.until(fmt.Sprint(kind, " serves ", to), func() error {
				for {
					_, err := client.Connect(lab.UDP, to, lab.Timeout(10*time.Millisecond))
					if err == nil || time.Since(start) > time.Minute {
						took[kind] = append(took[kind], time.Since(start))
						return err
					}
				}
			})
			e.check(e.deleteService(t.Context(), svc.Name))
			e.stop(p)
			e.cleanup(t.Context(), kind, n)
		}
	}
	for kind, all := range took {
		slices.Sort(all)
		t.Logf("%s: median %v of %v", kind, all[len(all)/2], all)
	}
}
