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

// labelProxyName on a Service assigns it to another proxy.
const labelProxyName = "service.kubernetes.io/service-proxy-name"

type kind struct {
	name     string // as in source.Kind
	version  schema.GroupVersion
	resource string // in paths of the API
	labels   string // selectors
	fields   string
	empty    source.Object
	list     runtime.Object

	// optional says that the source works without the kind if the API server does not
	// have it or does not allow to list it.
	optional bool

	// consequence says what does not work without an optional kind that only some
	// features need. Its absence is no error.
	consequence string

	// metadata says that only the objects' metadata is requested, and only whether objects
	// exist is delivered.
	metadata bool
}

// object returns a new object of the kind that has only a name.
func (k *kind) object(namespace, name string) source.Object {
	o := k.empty.DeepCopyObject().(source.Object)
	o.SetNamespace(namespace)
	o.SetName(name)
	return o
}

// listName returns the kind of lists.
func (k *kind) listName() string {
	if k.metadata {
		return "PartialObjectMetadataList"
	}
	return k.name + "List"
}

func (k *kind) selectFrom(o *metav1.ListOptions) {
	o.LabelSelector, o.FieldSelector = k.labels, k.fields
}

// kinds returns the kinds that are watched.
func (o *Options) kinds() []*kind {
	all := []*kind{{
		name:     "Node",
		version:  corev1.SchemeGroupVersion,
		resource: "nodes",
		fields:   fields.OneTermEqualSelector("metadata.name", o.NodeName).String(),
		empty:    &corev1.Node{},
		list:     &corev1.NodeList{},
	}, {
		name:     "ServiceCIDR",
		version:  networkingv1.SchemeGroupVersion,
		resource: "servicecidrs",
		empty:    &networkingv1.ServiceCIDR{},
		list:     &networkingv1.ServiceCIDRList{},
		optional: true,
	}, {
		name:     "Service",
		version:  corev1.SchemeGroupVersion,
		resource: "services",
		labels:   "!" + labelProxyName,
		fields:   fields.OneTermNotEqualSelector("spec.clusterIP", corev1.ClusterIPNone).String(),
		empty:    &corev1.Service{},
		list:     &corev1.ServiceList{},
	}, {
		name:     "EndpointSlice",
		version:  discoveryv1.SchemeGroupVersion,
		resource: "endpointslices",
		labels:   "!" + corev1.IsHeadlessService,
		empty:    &discoveryv1.EndpointSlice{},
		list:     &discoveryv1.EndpointSliceList{},
	}}
	if o.AllNodes {
		all = append(all, &kind{
			name:     "NodeMetadata",
			version:  corev1.SchemeGroupVersion,
			resource: "nodes",
			empty:    &metav1.PartialObjectMetadata{},
			list:     &metav1.PartialObjectMetadataList{},
			metadata: true,
			optional: true,

			consequence: "connections to endpoints of deleted Nodes time out",
		})
	}
	if o.NetworkPolicies {
		all = append(all, &kind{
			name:        "NetworkPolicy",
			version:     networkingv1.SchemeGroupVersion,
			resource:    "networkpolicies",
			empty:       &networkingv1.NetworkPolicy{},
			list:        &networkingv1.NetworkPolicyList{},
			optional:    true,
			consequence: "connections stay on the fast path when a NetworkPolicy changes",
		})
	}
	return all
}
