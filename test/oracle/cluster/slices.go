// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"

	"github.com/slipstream-proxy/slipstream/test/oracle/stage"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// maxEndpoints bounds the endpoints of a Service in one family: with more, many more
// connections would be needed to meet each of them.
const maxEndpoints = 4

// slices makes up a Service's EndpointSlices: for each family none, one or two.
func (g *generator) slices(svc *corev1.Service) (all []*discoveryv1.EndpointSlice) {
	hints := g.hinting()
	for f, addressType := range []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6} {
		var endpoints []discoveryv1.Endpoint
		for _, e := range some(g, pick(g, 0, 1, 2, 2, 3, 3, 4, 4), stage.Endpoints) {
			endpoints = append(endpoints, g.endpoint(e, f, hints))
		}
		if len(endpoints) == 0 && g.once(2) {
			continue // no slice at all
		}
		cut := len(endpoints)
		if g.once(3) {
			cut = g.IntN(cut + 1)
		}
		parts := [][]discoveryv1.Endpoint{endpoints[:cut:cut], endpoints[cut:]}
		if cut > 0 && g.once(3) {
			parts[1] = append(parts[1], g.again(endpoints[g.IntN(cut)]))
		}
		for i, part := range parts {
			if len(part) == 0 && i > 0 {
				continue
			}
			s := &discoveryv1.EndpointSlice{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: svc.Namespace,
					Name:      fmt.Sprintf("%s-ipv%d-%d", svc.Name, 4+2*f, i),
					Labels:    map[string]string{discoveryv1.LabelServiceName: svc.Name},
				},
				AddressType: addressType,
				Endpoints:   part,
				// Within a slice, all endpoints have the same ports.
				Ports: g.slicePorts(svc, len(endpoints)),
			}
			if svc.Spec.ClusterIP == corev1.ClusterIPNone || g.once(30) {
				s.Labels[labelHeadless] = ""
			}
			if g.once(30) {
				s.Labels[labelProxyName] = "another"
			}
			all = append(all, s)
		}
	}
	return all
}

// slicePorts are the ports of a slice: those of the Service, by name, with mistakes now
// and then. A large Service has one target port, so that it has not too many backends.
func (g *generator) slicePorts(svc *corev1.Service, endpoints int) (ports []discoveryv1.EndpointPort) {
	for _, p := range svc.Spec.Ports {
		port := discoveryv1.EndpointPort{Name: ptr.To(p.Name), Protocol: ptr.To(p.Protocol), Port: ptr.To(int32(stage.TargetPorts[0]))}
		if 2*endpoints <= maxEndpoints {
			port.Port = ptr.To(int32(pick(g, stage.TargetPorts...)))
		}
		switch g.IntN(30) {
		case 0:
			continue // has no such port
		case 1:
			port.Port = nil // all ports, says the API; kube-proxy does without
		case 2:
			port.Protocol = ptr.To(pick(g, corev1.ProtocolTCP, corev1.ProtocolUDP))
		case 3:
			port.Name = ptr.To("unknown-" + p.Name + "x")
		}
		ports = append(ports, port)
	}
	return ports
}

func (g *generator) endpoint(e stage.Endpoint, family int, h hinting) discoveryv1.Endpoint {
	out := discoveryv1.Endpoint{Addresses: []string{e.Address[family].String()}, NodeName: ptr.To(e.Node)}
	switch {
	case g.once(12):
		out.NodeName = nil
	case g.once(12) && e.Node == stage.Node2:
		out.NodeName = ptr.To(stage.Node3) // as far from n1
	}
	if !g.once(3) {
		out.Conditions.Ready = pick(g, nil, ptr.To(true))
	} else {
		maybe := []*bool{nil, ptr.To(true), ptr.To(false)}
		out.Conditions = discoveryv1.EndpointConditions{Ready: pick(g, maybe...), Serving: pick(g, maybe...), Terminating: pick(g, maybe...)}
	}
	if h.zones && !g.once(h.gap) || g.once(30) {
		out.Hints = &discoveryv1.EndpointHints{}
		for _, z := range some(g, 1+g.IntN(2), zones) {
			out.Hints.ForZones = append(out.Hints.ForZones, discoveryv1.ForZone{Name: z})
		}
	}
	if h.nodes && !g.once(h.gap) {
		if out.Hints == nil {
			out.Hints = &discoveryv1.EndpointHints{}
		}
		out.Hints.ForNodes = []discoveryv1.ForNode{{Name: pick(g, stage.Node1, stage.Node2, stage.Node3)}}
	}
	return out
}

// hinting says which topology hints a Service's endpoints have; one in gap endpoints
// has none, which spoils it for all.
type hinting struct {
	zones, nodes bool
	gap          int
}

func (g *generator) hinting() hinting {
	return hinting{zones: g.once(3), nodes: g.once(4), gap: pick(g, 6, 1000)}
}

// again is an endpoint that is in two slices: the same, or the one that had the address
// before and is terminating. (What holds if several that are not terminating differ is
// not defined.)
func (g *generator) again(e discoveryv1.Endpoint) discoveryv1.Endpoint {
	e = *e.DeepCopy()
	if !ptr.Deref(e.Conditions.Terminating, false) && g.once(2) {
		e.Conditions = discoveryv1.EndpointConditions{Ready: ptr.To(false), Serving: ptr.To(g.once(2)), Terminating: ptr.To(true)}
	}
	return e
}
