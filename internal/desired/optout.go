// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// AnnotationFastPath with the value "off" keeps connections off the fast path: on a Service those to its frontends, on
// a pod of this node those from and to its addresses. On a Namespace it counts for each of its Services and pods.
const AnnotationFastPath = "slipstream.io/fast-path"

// optOuts are the pods of this node, and the Namespaces that opt out of the fast path.
type optOuts struct {
	pods       map[types.NamespacedName]*pod
	namespaces map[string]bool
}

// pod is the part of a pod that the proxy uses.
type pod struct {
	annotation string // its beginning
	off        bool   // by Config.SlowPathPod
	direct     bool
	ips        []netip.Addr
}

// SetPod adds or replaces a pod of this node. The object is not retained. Addresses of the host's
// network belong to the node, and those of a pod that has ended may belong to another one.
func (s *State) SetPod(in *corev1.Pod) {
	name := types.NamespacedName{Namespace: in.Namespace, Name: in.Name}
	value := in.Annotations[AnnotationFastPath]
	to := &pod{annotation: strings.Clone(value[:min(len(value), 100)])}
	if from := s.optOuts.pods[name]; s.annotated(in.Namespace) && (from == nil || from.annotation != to.annotation) {
		s.fastPathProblem(Problem{Object: "Pod " + name.String()}, to.annotation)
	}
	to.off = s.config.SlowPathPod != nil && s.config.SlowPathPod(in)
	to.direct = s.config.DirectPod != nil && s.config.DirectPod(in)
	if !in.Spec.HostNetwork && in.Status.Phase != corev1.PodSucceeded && in.Status.Phase != corev1.PodFailed {
		for _, ip := range in.Status.PodIPs {
			if a, ok := parseAddr(ip.IP); ok {
				to.ips = append(to.ips, a)
			}
		}
	}
	s.setPod(name, to)
}

// DeletePod deletes a pod.
func (s *State) DeletePod(namespace, name string) {
	s.setPod(types.NamespacedName{Namespace: namespace, Name: name}, nil)
}

// setPod replaces a pod. to is nil if it was deleted.
func (s *State) setPod(name types.NamespacedName, to *pod) {
	o := &s.optOuts
	if from := o.pods[name]; from != nil {
		s.usePod(name, from, -1)
		delete(o.pods, name)
	}
	if to != nil {
		o.pods[name] = to
		s.usePod(name, to, 1)
	}
}

// usePod adds n users of a pod's addresses, if it opts out by its own or its Namespace's annotation,
// and if Config.DirectPod selects it.
func (s *State) usePod(name types.NamespacedName, p *pod, n int) {
	for _, ip := range p.ips {
		if p.off || s.optOuts.namespaces[name.Namespace] || p.annotation == "off" && s.annotated(name.Namespace) {
			s.sets[SlowPathIPs].use(Address(ip), n)
		}
		if p.direct {
			s.sets[DirectIPs].use(Address(ip), n)
		}
	}
}

// SetNamespace adds or replaces a Namespace. The object is not retained.
func (s *State) SetNamespace(in *corev1.Namespace) {
	value := in.Annotations[AnnotationFastPath]
	s.fastPathProblem(Problem{Object: "Namespace " + in.Name}, value)
	s.setNamespace(in.Name, value == "off", s.config.Annotated != nil && s.config.Annotated(in.Labels))
}

// DeleteNamespace deletes a Namespace.
func (s *State) DeleteNamespace(name string) { s.setNamespace(name, false, false) }

// setNamespace says whether a Namespace opts out of the fast path, and whether its objects' annotations count.
func (s *State) setNamespace(name string, off, annotated bool) {
	o, former := &s.optOuts, s.permits.namespaces[name]
	if o.namespaces[name] == off && former == annotated {
		return
	}
	usePods := func(n int) {
		for podName, p := range o.pods {
			if podName.Namespace == name {
				s.usePod(podName, p, n)
			}
		}
	}
	usePods(-1)
	put(o.namespaces, name, off)
	put(s.permits.namespaces, name, annotated)
	usePods(1)
	if former != annotated {
		s.permit(name)
	}
	for _, svc := range s.services {
		if svc.name.Namespace == name && svc.spec != nil {
			s.dirtyClaims(svc)
		}
	}
}

// fastPathProblem reports that a value of AnnotationFastPath is not one.
func (s *State) fastPathProblem(p Problem, value string) {
	if value != "off" && value != "on" && value != "" {
		p.Field, p.Reason = "metadata.annotations["+AnnotationFastPath+"]", "neither on nor off: "+value
		s.addProblem(p)
	}
}
