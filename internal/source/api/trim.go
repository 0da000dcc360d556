// SPDX-License-Identifier: Apache-2.0

package api

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipstream-proxy/slipstream/internal/source"
)

// keptLabels and keptAnnotations are those that mean something to a Service proxy.
var (
	keptLabels = []string{
		discoveryv1.LabelServiceName, corev1.IsHeadlessService, labelProxyName,
		corev1.LabelTopologyZone, corev1.LabelTopologyRegion, corev1.LabelHostname,
	}
	keptAnnotations = []string{corev1.EndpointsLastChangeTriggerTime, corev1.AnnotationTopologyMode}
)

// trim takes from an object what no Service proxy asks for. Most of an object may be
// just that: who owns which field, whom endpoints stand for, images on the node.
func trim(o source.Object) {
	switch o := o.(type) {
	case *corev1.Service:
		trimMeta(&o.ObjectMeta)
		o.Spec.Selector = nil
		o.Status.Conditions = nil
	case *discoveryv1.EndpointSlice:
		trimMeta(&o.ObjectMeta)
		for i := range o.Endpoints {
			e := &o.Endpoints[i]
			e.TargetRef, e.DeprecatedTopology, e.Hostname = nil, nil, nil
		}
	case *corev1.Node:
		trimMeta(&o.ObjectMeta)
		o.Spec = corev1.NodeSpec{PodCIDR: o.Spec.PodCIDR, PodCIDRs: o.Spec.PodCIDRs, Taints: o.Spec.Taints}
		o.Status = corev1.NodeStatus{Addresses: o.Status.Addresses}
	case *networkingv1.ServiceCIDR:
		trimMeta(&o.ObjectMeta)
		o.Status = networkingv1.ServiceCIDRStatus{}
	}
}

func trimMeta(m *metav1.ObjectMeta) {
	*m = metav1.ObjectMeta{
		Namespace:         m.Namespace,
		Name:              m.Name,
		UID:               m.UID,
		CreationTimestamp: m.CreationTimestamp,
		DeletionTimestamp: m.DeletionTimestamp,
		Labels:            some(m.Labels, keptLabels),
		Annotations:       some(m.Annotations, keptAnnotations),
	}
}

// some are the members of a map that are kept; nil when there are none.
func some(all map[string]string, keep []string) (out map[string]string) {
	if len(all) == 0 {
		return nil
	}
	for _, key := range keep {
		if value, ok := all[key]; ok {
			if out == nil {
				out = map[string]string{}
			}
			out[key] = value
		}
	}
	return out
}
