// SPDX-License-Identifier: Apache-2.0

// Package validate checks Services, EndpointSlices, Nodes and ServiceCIDRs as a
// Kubernetes API server checks newly created ones, as far as a Service proxy
// depends on it. It takes objects whose defaults have been applied, from
// wherever they come, and returns faults by field.
//
// The rules are those of Kubernetes 1.36, written anew. Where they were
// tightened for new objects (KEP-4858: addresses without leading zeros, no
// IPv4-mapped IPv6 addresses, prefixes without host bits) the tight rule
// applies; an address that merely is not in canonical form is accepted, as it
// is by the API server.
package validate

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/slipstream-proxy/slipstream/internal/source"
)

// Object returns the faults of a Service, EndpointSlice, Node or ServiceCIDR, in
// the order of its fields; none means that it is valid. Another type is a fault too.
func Object(o source.Object) field.ErrorList {
	switch o := o.(type) {
	case *corev1.Service:
		return Service(o)
	case *discoveryv1.EndpointSlice:
		return EndpointSlice(o)
	case *corev1.Node:
		return Node(o)
	case *networkingv1.ServiceCIDR:
		return ServiceCIDR(o)
	}
	return field.ErrorList{field.InternalError(nil, fmt.Errorf("no rules for %T", o))}
}

// metadata checks what all kinds have in common. The rule for the name is
// given as a function that returns what is wrong with one.
func metadata(m *metav1.ObjectMeta, namespaced bool, name func(string) []string) field.ErrorList {
	path := field.NewPath("metadata")
	if m.Name == "" {
		detail := "an object needs a name"
		if m.GenerateName != "" {
			detail = "only an API server can make a name from generateName"
		}
		return field.ErrorList{field.Required(path.Child("name"), detail)}
	}
	rule := func(path *field.Path, value string) field.ErrorList {
		return invalid(path, value, name(value))
	}
	return apivalidation.ValidateObjectMetaWithOpts(m, namespaced, rule, path)
}

// invalid turns the messages of the helpers in
// k8s.io/apimachinery/pkg/util/validation into faults of one field.
func invalid(path *field.Path, value string, messages []string) field.ErrorList {
	var faults field.ErrorList
	for _, m := range messages {
		faults = append(faults, field.Invalid(path, value, m))
	}
	return faults
}

// oneOf faults a value that is none of those allowed.
func oneOf[T ~string](path *field.Path, value T, allowed ...T) field.ErrorList {
	for _, a := range allowed {
		if value == a {
			return nil
		}
	}
	if value == "" {
		return field.ErrorList{field.Required(path, fmt.Sprintf("must be one of %q", allowed))}
	}
	return field.ErrorList{field.NotSupported(path, value, allowed)}
}
