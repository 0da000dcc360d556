// SPDX-License-Identifier: Apache-2.0

package api

import (
	"reflect"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
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

	optional    bool                // the source works without the kind, if the API server lacks it or does not allow to list it
	consequence string              // what does not work without an optional kind that only some features need; its absence is no error
	strip       func(source.Object) // removes from an object what is not needed; may be nil
	metadata    bool                // only the metadata is requested, and only whether objects exist is delivered
}

// object returns a new object of the kind that has only a name.
func (k *kind) object(namespace, name string) source.Object {
	o := k.empty.DeepCopyObject().(source.Object)
	o.SetNamespace(namespace)
	o.SetName(name)
	return o
}

// served is the kind of the objects that the API server sends.
func (k *kind) served() string { return reflect.TypeOf(k.empty).Elem().Name() }

func (k *kind) selectFrom(o *metav1.ListOptions) {
	o.LabelSelector, o.FieldSelector = k.labels, k.fields
}

// kinds returns the kinds that are watched.
func (o *Options) kinds() []*kind {
	ofNode := func(field string) string { return fields.OneTermEqualSelector(field, o.NodeName).String() }
	all := []*kind{
		{name: "Node", version: corev1.SchemeGroupVersion, empty: &corev1.Node{}, list: &corev1.NodeList{}, fields: ofNode("metadata.name")},
		{name: "ServiceCIDR", version: networkingv1.SchemeGroupVersion, empty: &networkingv1.ServiceCIDR{}, list: &networkingv1.ServiceCIDRList{}, optional: true},
		{
			name: "Service", version: corev1.SchemeGroupVersion, empty: &corev1.Service{}, list: &corev1.ServiceList{},
			labels: "!" + labelProxyName,
			fields: fields.OneTermNotEqualSelector("spec.clusterIP", corev1.ClusterIPNone).String(),
		},
		{
			name: "EndpointSlice", version: discoveryv1.SchemeGroupVersion, empty: &discoveryv1.EndpointSlice{}, list: &discoveryv1.EndpointSliceList{},
			labels: "!" + corev1.IsHeadlessService,
		},
	}
	if o.OtherNodes {
		all[0].fields = ""
	}
	if o.AllNodes {
		all = append(all, &kind{
			name: "NodeMetadata", resource: "nodes", version: corev1.SchemeGroupVersion,
			empty: &metav1.PartialObjectMetadata{}, list: &metav1.PartialObjectMetadataList{}, metadata: true, optional: true,
			consequence: "connections to endpoints of deleted Nodes time out",
		})
	}
	if o.FastPath {
		all = append(all, &kind{
			name: "NetworkPolicy", version: networkingv1.SchemeGroupVersion,
			empty: &networkingv1.NetworkPolicy{}, list: &networkingv1.NetworkPolicyList{}, optional: true,
			consequence: "connections stay on the fast path when a NetworkPolicy changes",
		})
	}
	if o.FastPath || o.Namespaces {
		all = append(all, &kind{
			name: "Namespace", version: corev1.SchemeGroupVersion, empty: &corev1.Namespace{}, list: &corev1.NamespaceList{}, optional: true,
			consequence: "Namespaces cannot opt out of the fast path, and serviceAnnotations selects none by labels",
		})
	}
	if o.FastPath || o.Pods {
		pods := &kind{
			name: "Pod", version: corev1.SchemeGroupVersion, empty: &corev1.Pod{}, list: &corev1.PodList{}, fields: ofNode("spec.nodeName"), optional: true, strip: stripPod,
			consequence: "pods cannot opt out of the fast path",
		}
		if o.Pods {
			pods.consequence += ", and all of their connections are translated, as socketExcludePods may exclude them"
		}
		all = append(all, pods)
	}
	for _, k := range all {
		if k.resource == "" {
			plural, _ := meta.UnsafeGuessKindToResource(k.version.WithKind(k.name))
			k.resource = plural.Resource
		}
	}
	return all
}

// stripPod leaves what desired.State.SetPod and the expression of the configuration use.
func stripPod(o source.Object) {
	p := o.(*corev1.Pod)
	*p = corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: p.Namespace, Name: p.Name, ResourceVersion: p.ResourceVersion, Labels: p.Labels, Annotations: p.Annotations,
		},
		Spec:   corev1.PodSpec{HostNetwork: p.Spec.HostNetwork},
		Status: corev1.PodStatus{Phase: p.Status.Phase, PodIPs: p.Status.PodIPs},
	}
}
