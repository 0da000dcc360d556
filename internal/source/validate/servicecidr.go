// SPDX-License-Identifier: Apache-2.0

package validate

import (
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ServiceCIDR returns the faults of a ServiceCIDR (KEP-1880): one range of
// ClusterIPs, or one of each family, in canonical form.
func ServiceCIDR(s *networkingv1.ServiceCIDR) field.ErrorList {
	faults := metadata(&s.ObjectMeta, false, validation.IsDNS1123Subdomain)
	path, cidrs := field.NewPath("spec", "cidrs"), s.Spec.CIDRs
	if len(cidrs) == 0 {
		return append(faults, field.Required(path, "a ServiceCIDR needs at least one range"))
	}
	for i, value := range cidrs {
		faults = append(faults, validation.IsValidCIDR(path.Index(i), value)...)
	}
	return append(faults, twoFamilies(path, cidrs)...)
}
