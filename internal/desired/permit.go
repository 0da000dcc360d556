// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// permits are the Namespaces whose objects' annotations count, and the objects that have some: the
// labels of a Namespace may change. They are empty without Config.Annotated.
type permits struct {
	namespaces map[string]bool
	objects    map[string]map[string]metav1.Object // by namespace, kind and name
}

// permitted returns an object, without annotations if they do not count.
func permitted[T interface {
	metav1.Object
	runtime.Object
}](s *State, in T) T {
	if s.config.Annotated == nil {
		return in
	}
	s.forget(in, in.GetNamespace(), in.GetName())
	if !slices.ContainsFunc([]string{AnnotationScheduler, AnnotationLocalZone, AnnotationSlowStart, AnnotationOutliers, AnnotationWeight, AnnotationFastPath, AnnotationFailover, AnnotationPortRanges,
		AnnotationMaxConnections, AnnotationMaxPerClient, AnnotationRatePerClient, AnnotationLimitAction}, func(a string) bool { return in.GetAnnotations()[a] != "" }) {
		return in
	}
	of := s.permits.objects[in.GetNamespace()]
	if of == nil {
		of = map[string]metav1.Object{}
		s.permits.objects[in.GetNamespace()] = of
	}
	of[fmt.Sprintf("%T %s", in, in.GetName())] = in.DeepCopyObject().(T)
	if !s.permits.namespaces[in.GetNamespace()] {
		in = in.DeepCopyObject().(T)
		in.SetAnnotations(nil)
	}
	return in
}

// forget drops the record of an object of a type.
func (s *State) forget(of metav1.Object, namespace, name string) {
	here := s.permits.objects[namespace]
	if here == nil {
		return
	}
	if delete(here, fmt.Sprintf("%T %s", of, name)); len(here) == 0 {
		delete(s.permits.objects, namespace)
	}
}

// permit says whether the annotations of objects in a Namespace count.
func (s *State) permit(namespace string, allowed bool) {
	if s.permits.namespaces[namespace] == allowed {
		return
	}
	put(s.permits.namespaces, namespace, allowed)
	for _, o := range maps.Clone(s.permits.objects[namespace]) {
		switch o := o.(type) {
		case *corev1.Service:
			s.SetService(o)
		case *discoveryv1.EndpointSlice:
			s.SetEndpointSlice(o)
		case *corev1.Pod:
			s.SetPod(o)
		}
	}
}
