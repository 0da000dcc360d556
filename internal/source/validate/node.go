// SPDX-License-Identifier: Apache-2.0

package validate

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Node returns the faults of a Node: of its metadata, whose labels say in
// which zone it is, and of its pod CIDRs. Of its addresses the API server takes
// whatever they are; those that are none get a warning (see Warnings).
func Node(n *corev1.Node) field.ErrorList {
	faults := metadata(&n.ObjectMeta, false, validation.IsDNS1123Subdomain)
	spec, list := field.NewPath("spec"), field.NewPath("spec", "podCIDRs")
	cidrs := n.Spec.PodCIDRs
	switch {
	case len(cidrs) > 0 && cidrs[0] != n.Spec.PodCIDR:
		faults = append(faults, field.Invalid(spec.Child("podCIDR"), n.Spec.PodCIDR,
			fmt.Sprintf("must be the same as podCIDRs[0], %q", cidrs[0])))
	case len(cidrs) == 0 && n.Spec.PodCIDR != "":
		faults = append(faults, field.Required(list, "must hold podCIDR"))
	}
	for i, value := range cidrs {
		faults = append(faults, cidr(list.Index(i), value)...)
	}
	return append(faults, twoFamilies(list, cidrs)...)
}
