// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/source"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

// Tell tells a state of what a source has learned. Events without an object say
// nothing to it. It returns whether there may be something to program now, of which
// it is only sure for EndpointSlices.
func Tell(s *desired.State, e source.Event) (changed bool) {
	gone := e.Type == source.Delete
	switch o := e.Object.(type) {
	case *corev1.Service:
		if gone {
			s.DeleteService(o.Namespace, o.Name)
		} else {
			s.SetService(o)
		}
	case *discoveryv1.EndpointSlice:
		if gone {
			return s.DeleteEndpointSlice(o.Namespace, o.Name)
		}
		return s.SetEndpointSlice(o)
	case *corev1.Node:
		if gone {
			s.DeleteNode(o.Name)
		} else {
			s.SetNode(o)
		}
	case *networkingv1.ServiceCIDR:
		if gone {
			s.DeleteServiceCIDR(o.Name)
		} else {
			s.SetServiceCIDR(o)
		}
	}
	return true
}
