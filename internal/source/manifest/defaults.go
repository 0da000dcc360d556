// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/slipstream-proxy/slipstream/internal/source"
)

// setDefaults sets the defaults of an API server that package desired does not
// assume itself. It allocates nothing: no cluster IPs, no node ports.
func setDefaults(o source.Object) {
	switch o := o.(type) {
	case *corev1.Service:
		setIfZero(&o.Namespace, corev1.NamespaceDefault)
		spec := &o.Spec
		setIfZero(&spec.Type, corev1.ServiceTypeClusterIP)
		for i := range spec.Ports {
			setIfZero(&spec.Ports[i].Protocol, corev1.ProtocolTCP)
		}
		setFirstAndAll(&spec.ClusterIP, &spec.ClusterIPs)
	case *discoveryv1.EndpointSlice:
		setIfZero(&o.Namespace, corev1.NamespaceDefault)
	case *corev1.Node:
		setFirstAndAll(&o.Spec.PodCIDR, &o.Spec.PodCIDRs)
	}
}

// setFirstAndAll completes a pair of fields of which the older one holds the first
// value of the newer one, e.g. clusterIP and clusterIPs.
func setFirstAndAll(first *string, all *[]string) {
	switch {
	case *first == "" && len(*all) > 0:
		*first = (*all)[0]
	case *first != "" && len(*all) == 0:
		*all = []string{*first}
	}
}

// setIfZero sets a field that has the zero value of its type.
func setIfZero[T comparable](p *T, value T) {
	var zero T
	if *p == zero {
		*p = value
	}
}
