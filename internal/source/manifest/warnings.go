// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/slipstream-proxy/slipstream/internal/source"
)

// warnings returns what is valid in an object but seldom intended, each as one line
// that starts with the field.
func warnings(o source.Object) (out []string) {
	warn := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	switch o := o.(type) {
	case *discoveryv1.EndpointSlice:
		if o.Labels[discoveryv1.LabelServiceName] == "" {
			warn("metadata.labels: without the label %s the slice belongs to no Service", discoveryv1.LabelServiceName)
		}
	case *corev1.Service:
		balanced := o.Spec.Type == corev1.ServiceTypeLoadBalancer
		hint := ""
		if balanced {
			hint = " (allocateLoadBalancerNodePorts: false says that this is intended)"
		}
		allocate := o.Spec.AllocateLoadBalancerNodePorts
		for i, p := range o.Spec.Ports {
			if p.NodePort == 0 && (o.Spec.Type == corev1.ServiceTypeNodePort || balanced && (allocate == nil || *allocate)) {
				warn("spec.ports[%d].nodePort: not set, and there is no API server to allocate one: the port is not opened on nodes%s", i, hint)
			}
		}
		if balanced && o.Spec.HealthCheckNodePort == 0 && o.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
			warn("spec.healthCheckNodePort: not set, and there is no API server to allocate one: load balancers cannot ask this node for its endpoints")
		}
	case *corev1.Node:
		for i, a := range o.Status.Addresses {
			if a.Type != corev1.NodeInternalIP && a.Type != corev1.NodeExternalIP {
				continue
			}
			if ip, err := netip.ParseAddr(a.Address); err != nil || ip.Zone() != "" {
				warn("status.addresses[%d].address: %q is not an IP address and is ignored", i, a.Address)
			}
		}
	}
	return out
}
