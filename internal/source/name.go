// SPDX-License-Identifier: Apache-2.0

package source

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

// Kind returns the Kubernetes kind of an object by its Go type, because
// objects from an API server come without one written into them.
func Kind(o Object) string {
	switch o.(type) {
	case *corev1.Service:
		return "Service"
	case *discoveryv1.EndpointSlice:
		return "EndpointSlice"
	case *corev1.Node:
		return "Node"
	case *networkingv1.ServiceCIDR:
		return "ServiceCIDR"
	}
	return fmt.Sprintf("%T", o)
}

// Name returns an object's kind, namespace and name as they are written in
// messages, e.g. "Service default/web" or "Node worker-1".
func Name(o Object) string {
	if ns := o.GetNamespace(); ns != "" {
		return Kind(o) + " " + ns + "/" + o.GetName()
	}
	return Kind(o) + " " + o.GetName()
}
