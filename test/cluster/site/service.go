// SPDX-License-Identifier: Apache-2.0

package site

import (
	"context"
	"encoding/json"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Port is the port of Services, over TCP and UDP.
const Port = 80

// NewService makes a Service of both families that selects pods by the label app; change
// may change it before, if it is not nil. It returns what the API server made of it.
func (s *Site) NewService(ctx context.Context, name, app string, change func(*corev1.ServiceSpec)) (*corev1.Service, error) {
	both := corev1.IPFamilyPolicyRequireDualStack
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{
			Selector:       map[string]string{"app": app},
			IPFamilyPolicy: &both,
			Ports: []corev1.ServicePort{
				{Name: "tcp", Protocol: corev1.ProtocolTCP, Port: Port, TargetPort: intstr.FromInt32(TargetPort)},
				{Name: "udp", Protocol: corev1.ProtocolUDP, Port: Port, TargetPort: intstr.FromInt32(TargetPort)},
			},
		},
	}
	if change != nil {
		change(&svc.Spec)
	}
	return s.Plane.Client.CoreV1().Services(Namespace).Create(ctx, svc, metav1.CreateOptions{})
}

// PatchService changes a Service, or its subresource "status", as a load balancer's
// controller does, by a strategic merge patch: what becomes its JSON.
func (s *Site) PatchService(ctx context.Context, name string, patch any, sub ...string) (*corev1.Service, error) {
	data, err := json.Marshal(patch)
	if err != nil {
		return nil, err
	}
	return s.Plane.Client.CoreV1().Services(Namespace).Patch(ctx, name, types.StrategicMergePatchType, data, metav1.PatchOptions{}, sub...)
}

// DeleteService deletes a Service, and its EndpointSlices, as the garbage collector would.
func (s *Site) DeleteService(ctx context.Context, name string) error {
	if err := s.Plane.Client.CoreV1().Services(Namespace).Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	return s.Plane.Client.DiscoveryV1().EndpointSlices(Namespace).DeleteCollection(ctx, metav1.DeleteOptions{},
		metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + name})
}

// ClusterIP is where clients of a Service connect to, in one family; not valid if it has
// none there.
func ClusterIP(svc *corev1.Service, ipv6 bool) netip.AddrPort {
	for _, text := range svc.Spec.ClusterIPs {
		if a, err := netip.ParseAddr(text); err == nil && a.Is6() == ipv6 {
			return netip.AddrPortFrom(a, Port)
		}
	}
	return netip.AddrPort{}
}

// NodePort is where a Service's TCP port is reached on a node, in one family.
func NodePort(svc *corev1.Service, n *Node, ipv6 bool) netip.AddrPort {
	return netip.AddrPortFrom(n.Addr(ipv6), uint16(svc.Spec.Ports[0].NodePort))
}
