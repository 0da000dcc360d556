// SPDX-License-Identifier: Apache-2.0

package api

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/slipstream-proxy/slipstream/internal/source"
)

// labelProxyName on a Service gives it to another proxy.
const labelProxyName = "service.kubernetes.io/service-proxy-name"

// kind is a kind of objects that is watched, and which of them.
type kind struct {
	name     string // as source.Kind has it
	version  schema.GroupVersion
	resource string // in paths of the API
	labels   string // selectors
	fields   string
	list     runtime.Object
	// object makes an object of the kind that has a name and nothing else.
	object func(namespace, name string) source.Object

	// optional says that it does without when the API server does not have the
	// kind or does not let it be listed.
	optional bool
}

// selectFrom has a request ask for what is watched of the kind.
func (k *kind) selectFrom(o *metav1.ListOptions) {
	o.LabelSelector, o.FieldSelector = k.labels, k.fields
}

// kindsFor are the kinds that are watched on a node.
func kindsFor(nodeName string) []*kind {
	return []*kind{{
		name:     "Node",
		version:  corev1.SchemeGroupVersion,
		resource: "nodes",
		fields:   fields.OneTermEqualSelector("metadata.name", nodeName).String(),
		list:     &corev1.NodeList{},
		object: func(_, name string) source.Object {
			o := &corev1.Node{}
			o.Name = name
			return o
		},
	}, {
		name:     "ServiceCIDR",
		version:  networkingv1.SchemeGroupVersion,
		resource: "servicecidrs",
		list:     &networkingv1.ServiceCIDRList{},
		optional: true,
		object: func(_, name string) source.Object {
			o := &networkingv1.ServiceCIDR{}
			o.Name = name
			return o
		},
	}, {
		name:     "Service",
		version:  corev1.SchemeGroupVersion,
		resource: "services",
		labels:   "!" + labelProxyName,
		fields:   fields.OneTermNotEqualSelector("spec.clusterIP", corev1.ClusterIPNone).String(),
		list:     &corev1.ServiceList{},
		object: func(namespace, name string) source.Object {
			o := &corev1.Service{}
			o.Namespace, o.Name = namespace, name
			return o
		},
	}, {
		name:     "EndpointSlice",
		version:  discoveryv1.SchemeGroupVersion,
		resource: "endpointslices",
		labels:   "!" + corev1.IsHeadlessService,
		list:     &discoveryv1.EndpointSliceList{},
		object: func(namespace, name string) source.Object {
			o := &discoveryv1.EndpointSlice{}
			o.Namespace, o.Name = namespace, name
			return o
		},
	}}
}
