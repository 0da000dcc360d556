// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"net/netip"

	"github.com/slipstream-proxy/slipstream/internal/collect"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// One makes one Service of a few ports, and the EndpointSlice of its endpoints, which have the same ports
// unless these have a target.
func One(name string, ip netip.Addr, endpoints []netip.Addr, ports ...corev1.ServicePort) (*corev1.Service, *discoveryv1.EndpointSlice) {
	meta := metav1.ObjectMeta{Namespace: "bench", Name: name}
	svc := &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{ClusterIP: ip.String(), ClusterIPs: []string{ip.String()}, Ports: ports}}
	meta.Labels = map[string]string{discoveryv1.LabelServiceName: name}
	slice := &discoveryv1.EndpointSlice{ObjectMeta: meta, AddressType: discoveryv1.AddressTypeIPv4}
	for _, p := range ports {
		target := cmp.Or(p.TargetPort.IntVal, p.Port)
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &p.Name, Protocol: new(p.Protocol), Port: &target})
	}
	slice.Endpoints = collect.From(endpoints, func(a netip.Addr) discoveryv1.Endpoint { return discoveryv1.Endpoint{Addresses: []string{a.String()}} })
	return svc, slice
}
