// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// BenchmarkColdStart programs 1,000 Services x 10 endpoints into a new network namespace, and then its
// parts into others: the virtual servers, the addresses and the table. BenchmarkExecute of package
// netfilter/ipvs has what the kernel takes for the virtual servers.
func BenchmarkColdStart(b *testing.B) {
	const services, endpoints = 1000, 10
	state := desired.New(desired.Config{IPVS: true})
	for i := range services {
		name, ip := fmt.Sprintf("s%d", i), netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}).String()
		state.SetService(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: corev1.ServiceSpec{
			ClusterIP: ip, ClusterIPs: []string{ip}, Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}}}})
		s := &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}},
			AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: ptr.To[int32](8080)}},
		}
		for e := range endpoints {
			n := i*endpoints + e
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{netip.AddrFrom4([4]byte{10, 244, byte(n >> 8), byte(n)}).String()}})
		}
		state.SetEndpointSlice(s)
	}
	full := state.Full()
	took := map[string]time.Duration{}
	measure := func(what string, do func() error) {
		begin := time.Now()
		if err := do(); err != nil {
			b.Fatal(what, ": ", err)
		}
		took[what] += time.Since(begin)
	}
	ctx := b.Context()
	for b.Loop() {
		whole := open(b, newNamespace(b), Options{})
		measure("all", func() error { _, err := whole.Reconcile(ctx, &full.Change); return err })
		d := open(b, newNamespace(b), Options{})
		measure("prepare", func() error { return d.prepareNode(ctx) })
		p := plan{drain: d.drain, refused: d.refused}
		measure("plan", func() error { d.servers.write(&p, &full.Change); return nil })
		measure("servers", func() error { return d.execute(ctx, append(p.first, p.last...)) })
		measure("table", func() error { _, err := d.table.Reconcile(ctx, &full.Change); return err })
		measure("addresses", func() error { return d.changeAddresses(ctx, &full.Sets[desired.ClusterIPs]) })
	}
	for what, t := range took {
		b.ReportMetric(float64(t.Microseconds())/float64(b.N)/1e3, what+"-ms")
	}
}
