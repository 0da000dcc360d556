// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"net/netip"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/test/lab"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// servicePort is one port of the Service, the same on the backend.
type servicePort struct {
	name     string
	protocol corev1.Protocol
	port     uint16
}

var (
	streamPort  = servicePort{"stream", corev1.ProtocolTCP, 5201}
	requestPort = servicePort{"request", corev1.ProtocolTCP, 8080}
	floodPort   = servicePort{"flood", corev1.ProtocolUDP, 5353}

	servicePorts = []servicePort{streamPort, requestPort, floodPort}
)

// frontend is where clients connect to.
func (w *world) frontend(p servicePort) netip.AddrPort {
	return netip.AddrPortFrom(w.clusterIP(), p.port)
}

// backend is where the server listens.
func (w *world) backend(p servicePort) netip.AddrPort {
	return netip.AddrPortFrom(w.server.Addr(w.ipv6), p.port)
}

// services is what a node has to program: one Service with one backend.
func (w *world) services(n *lab.Node) (*desired.Change, error) {
	meta := metav1.ObjectMeta{Namespace: "bench", Name: "server"}
	svc := &corev1.Service{
		ObjectMeta: meta,
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ClusterIP: w.clusterIP().String(), ClusterIPs: []string{w.clusterIP().String()}},
	}
	ready, home := true, w.server.Node().Name()
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  meta,
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{
			Addresses:  []string{w.server.Addr(w.ipv6).String()},
			Conditions: discoveryv1.EndpointConditions{Ready: &ready, Serving: &ready},
			NodeName:   &home,
		}},
	}
	slice.Labels = map[string]string{discoveryv1.LabelServiceName: meta.Name}
	if w.ipv6 {
		slice.AddressType = discoveryv1.AddressTypeIPv6
	}
	for _, p := range servicePorts {
		number := int32(p.port)
		svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: p.name, Protocol: p.protocol, Port: number})
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &p.name, Protocol: &p.protocol, Port: &number})
	}
	state := desired.New(desired.Config{
		NodeName:    n.Name(),
		DetectLocal: desired.DetectLocal{CIDRs: []netip.Prefix{w.podRange()}},
	})
	state.SetNodeAddresses(n.Addrs())
	state.SetService(svc)
	state.SetEndpointSlice(slice)
	full := state.Full()
	if len(full.Problems) > 0 {
		return nil, full.Problems[0]
	}
	return full, nil
}
