// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// BenchmarkChange replaces an endpoint of one of many Services, from the EndpointSlice until the maps have it.
// It needs root, and attaches programs to a cgroup without processes.
func BenchmarkChange(b *testing.B) {
	kerneltest.Require(b, kerneltest.CGroupBPF)
	for _, services := range []int{100, 10_000} {
		b.Run(fmt.Sprintf("services=%d", services), func(b *testing.B) {
			state := desired.New(desired.Config{NodeName: node})
			slice := func(i, last int) *discoveryv1.EndpointSlice {
				s := &discoveryv1.EndpointSlice{
					ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("web-", i), Labels: map[string]string{discoveryv1.LabelServiceName: fmt.Sprint("web-", i)}},
					AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: ptr.To[int32](8080)}},
				}
				for e := range 10 {
					if e == 9 {
						e = last
					}
					s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.245.%d.%d", i%250, e+1)}})
				}
				return s
			}
			for i := range services {
				ip := fmt.Sprintf("10.97.%d.%d", i>>8, i&255)
				state.SetService(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("web-", i)}, Spec: corev1.ServiceSpec{
					ClusterIP: ip, ClusterIPs: []string{ip}, Ports: []corev1.ServicePort{{Port: 80}},
				}})
				state.SetEndpointSlice(slice(i, 9))
			}
			n, err := kerneltest.NewLab(b).Host("node", netip.MustParsePrefix("192.168.100.11/24"))
			if err != nil {
				b.Fatal(err)
			}
			s, err := New(Options{NetNS: n.FD(), CGroup: kerneltest.CGroup(b), Pods: b.TempDir()})
			if err != nil {
				b.Fatal(err)
			}
			defer func() {
				if err := s.Close(); err != nil {
					b.Error(err)
				}
				if err := Remove(n.FD()); err != nil {
					b.Error(err)
				}
			}()
			if _, err := s.Reconcile(b.Context(), &state.Full().Change); err != nil {
				b.Fatal(err)
			}
			for i := 0; b.Loop(); i++ {
				state.SetEndpointSlice(slice(7, 10+i%2))
				if stats, err := s.Apply(b.Context(), &state.Change().Change); err != nil || stats.Elements == 0 {
					b.Fatal(stats, err)
				}
			}
		})
	}
}
