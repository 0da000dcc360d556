// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// permits are the Namespaces whose objects' annotations count, and what permit needs of objects that have some: the
// labels of a Namespace may change. They are empty without Config.Annotated.
type permits struct {
	namespaces map[string]bool
	objects    map[string]metav1.Object // by type, namespace and name
}

// permitted returns a Service or a slice, with those of its annotations that count. The record has no more than permit
// needs, as a tenant may write megabytes of the rest: of a slice only its annotations, which are cut as none that is
// valid has more than spaces beyond.
func permitted[T any, P interface {
	*T
	metav1.Object
}](s *State, in P) P {
	if s.config.Annotated == nil {
		return in
	}
	s.forget(in, in.GetNamespace(), in.GetName())
	kept := map[string]string{}
	for _, a := range []string{AnnotationScheduler, AnnotationLocalZone, AnnotationSlowStart, AnnotationOutliers, AnnotationWeight, AnnotationFastPath, AnnotationFailover, AnnotationPortRanges,
		AnnotationMaxConnections, AnnotationMaxPerClient, AnnotationRatePerClient, AnnotationLimitAction} {
		if value := in.GetAnnotations()[a]; value != "" {
			kept[a] = strings.Clone(value[:min(len(value), 1000)])
		}
	}
	if len(kept) == 0 {
		return in
	}
	out, record := *in, P(new(T))
	if svc, is := any(record).(*corev1.Service); is {
		*svc = *any(in).(*corev1.Service).DeepCopy()
		svc.ObjectMeta, svc.Spec.Selector = metav1.ObjectMeta{CreationTimestamp: svc.CreationTimestamp}, nil
		if value, other := in.GetLabels()[labelProxyName]; other {
			svc.Labels = map[string]string{labelProxyName: value}
		}
	}
	record.SetNamespace(in.GetNamespace())
	record.SetName(in.GetName())
	record.SetAnnotations(kept)
	s.permits.objects[fmt.Sprintf("%T %s/%s", in, in.GetNamespace(), in.GetName())] = record
	if P(&out).SetAnnotations(kept); !s.annotated(in.GetNamespace()) {
		P(&out).SetAnnotations(nil)
	}
	return &out
}

// forget drops the record of an object of a type.
func (s *State) forget(of metav1.Object, namespace, name string) {
	if len(s.permits.objects) > 0 {
		delete(s.permits.objects, fmt.Sprintf("%T %s/%s", of, namespace, name))
	}
}

// annotated reports whether annotations of objects in a Namespace count.
func (s *State) annotated(namespace string) bool {
	return s.config.Annotated == nil || s.permits.namespaces[namespace]
}

// permit follows a change of whether annotations count in a Namespace.
func (s *State) permit(namespace string) {
	var here []metav1.Object
	for _, o := range s.permits.objects {
		if o.GetNamespace() == namespace {
			here = append(here, o)
		}
	}
	for _, o := range here {
		switch o := o.(type) {
		case *corev1.Service:
			s.SetService(o)
		case *discoveryv1.EndpointSlice:
			name := types.NamespacedName{Namespace: namespace, Name: o.Name}
			if sl := s.slices[name]; sl != nil {
				to := *sl
				to.weight = s.weightOf(permitted(s, o))
				s.setSlice(name, &to)
			}
		}
	}
}
