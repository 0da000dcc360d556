// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/slipstream-proxy/slipstream/internal/source"
)

// setDefaults sets the defaults of an API server that package desired does not
// assume itself. It allocates nothing: no cluster IPs, no node ports.
func setDefaults(o source.Object) {
	switch o := o.(type) {
	case *corev1.Service:
		o.Namespace = cmp.Or(o.Namespace, corev1.NamespaceDefault)
		spec := &o.Spec
		spec.Type = cmp.Or(spec.Type, corev1.ServiceTypeClusterIP)
		for i := range spec.Ports {
			spec.Ports[i].Protocol = cmp.Or(spec.Ports[i].Protocol, corev1.ProtocolTCP)
		}
		setFirstAndAll(&spec.ClusterIP, &spec.ClusterIPs)
	case *discoveryv1.EndpointSlice:
		o.Namespace = cmp.Or(o.Namespace, corev1.NamespaceDefault)
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
