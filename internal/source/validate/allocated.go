// SPDX-License-Identifier: Apache-2.0

package validate

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/slipstream-proxy/slipstream/internal/source"
)

// Allocated returns what is missing from an object because an API server
// would have chosen it when the object was created, and none did: the cluster
// IPs of a Service. It is for sources that are not an API server; inventing
// addresses instead would give each node its own.
func Allocated(o source.Object) field.ErrorList {
	s, ok := o.(*corev1.Service)
	if !ok || s.Spec.Type == corev1.ServiceTypeExternalName || headless(&s.Spec) {
		return nil
	}
	spec := field.NewPath("spec")
	if s.Spec.ClusterIP == "" {
		return field.ErrorList{field.Required(spec.Child("clusterIP"),
			"a directory of manifests has no API server to allocate one: give an address, or None for a headless Service")}
	}
	if p := s.Spec.IPFamilyPolicy; p != nil && *p == corev1.IPFamilyPolicyRequireDualStack && len(s.Spec.ClusterIPs) < 2 {
		return field.ErrorList{field.Required(spec.Child("clusterIPs").Index(1),
			"a directory of manifests has no API server to allocate the second address that ipFamilyPolicy RequireDualStack asks for")}
	}
	return nil
}
