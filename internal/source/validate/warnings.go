// SPDX-License-Identifier: Apache-2.0

package validate

import (
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/slipstream-proxy/slipstream/internal/source"
)

// Warnings returns what is allowed in an object but hardly ever meant: each is
// one line that starts with the field.
func Warnings(o source.Object) []string {
	switch o := o.(type) {
	case *discoveryv1.EndpointSlice:
		if o.Labels[discoveryv1.LabelServiceName] == "" {
			return []string{fmt.Sprintf("metadata.labels: without the label %s the slice belongs to no Service", discoveryv1.LabelServiceName)}
		}
	case *corev1.Service:
		return append(unallocatedPorts(o), unallocatedHealthCheck(o)...)
	case *corev1.Node:
		return badAddresses(o)
	}
	return nil
}

// unallocatedPorts warns of node ports that an API server would have allocated.
func unallocatedPorts(s *corev1.Service) (warnings []string) {
	var otherwise string
	switch allocate := s.Spec.AllocateLoadBalancerNodePorts; s.Spec.Type {
	case corev1.ServiceTypeNodePort:
	case corev1.ServiceTypeLoadBalancer:
		if allocate != nil && !*allocate {
			return nil // it says that it wants none
		}
		otherwise = " (allocateLoadBalancerNodePorts: false says that this is meant)"
	default:
		return nil
	}
	for i, p := range s.Spec.Ports {
		if p.NodePort == 0 {
			warnings = append(warnings, fmt.Sprintf(
				"spec.ports[%d].nodePort: not set, and there is no API server to allocate one: the port is not opened on nodes%s", i, otherwise))
		}
	}
	return warnings
}

// unallocatedHealthCheck warns of the port that an API server would have
// allocated for a load balancer to ask which nodes have endpoints.
func unallocatedHealthCheck(s *corev1.Service) []string {
	if s.Spec.Type != corev1.ServiceTypeLoadBalancer || s.Spec.HealthCheckNodePort != 0 ||
		s.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal {
		return nil
	}
	return []string{"spec.healthCheckNodePort: not set, and there is no API server to allocate one: load balancers cannot ask this node for its endpoints"}
}

// badAddresses warns of a Node's addresses that cannot be used, as the API
// server takes any text.
func badAddresses(n *corev1.Node) (warnings []string) {
	for i, a := range n.Status.Addresses {
		if a.Type != corev1.NodeInternalIP && a.Type != corev1.NodeExternalIP {
			continue
		}
		if ip, err := netip.ParseAddr(a.Address); err != nil || ip.Zone() != "" {
			warnings = append(warnings, fmt.Sprintf("status.addresses[%d].address: %q is not an IP address and is passed over", i, a.Address))
		}
	}
	return warnings
}
