// SPDX-License-Identifier: Apache-2.0

package validate

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/slipstream-proxy/slipstream/source"
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
		if o.Spec.Type != corev1.ServiceTypeNodePort {
			return nil
		}
		var warnings []string
		for i, p := range o.Spec.Ports {
			if p.NodePort == 0 {
				warnings = append(warnings, fmt.Sprintf(
					"spec.ports[%d].nodePort: not set, and there is no API server to allocate one: the port is not opened on nodes", i))
			}
		}
		return warnings
	}
	return nil
}
