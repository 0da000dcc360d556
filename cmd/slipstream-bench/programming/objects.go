// SPDX-License-Identifier: Apache-2.0

package programming

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// What all generated Services have in common.
const (
	portName   = "http"
	port       = 80
	targetPort = 8080

	// sliceSize is how many endpoints the EndpointSlice controller puts into
	// one slice by default.
	sliceSize = 100

	// podsPerNode is the usual mean in tests of Kubernetes' scalability.
	podsPerNode = 30

	// localNode is the node that is being programmed.
	localNode = "node-0"
)

func namespaceOf(service int) string { return fmt.Sprintf("team-%02d", service%100) }

func nameOf(service int) string { return fmt.Sprintf("web-%06d", service) }

func sliceNameOf(service, slice int, f family) string {
	return fmt.Sprintf("%s-%s-%d", nameOf(service), strings.ToLower(string(f.name)), slice)
}

// createdAt is when Services were created: all have to have a time.
var createdAt = metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))

// fillService makes svc the Service of a number, as the API would give it.
func fillService(svc *corev1.Service, service int, families []family) {
	policy := corev1.IPFamilyPolicySingleStack
	if len(families) > 1 {
		policy = corev1.IPFamilyPolicyRequireDualStack
	}
	internal := corev1.ServiceInternalTrafficPolicyCluster
	*svc = corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:         namespaceOf(service),
			Name:              nameOf(service),
			CreationTimestamp: createdAt,
			Labels:            map[string]string{"app": nameOf(service)},
		},
		Spec: corev1.ServiceSpec{
			Type:                  corev1.ServiceTypeClusterIP,
			Selector:              map[string]string{"app": nameOf(service)},
			SessionAffinity:       corev1.ServiceAffinityNone,
			IPFamilyPolicy:        &policy,
			InternalTrafficPolicy: &internal,
			Ports: []corev1.ServicePort{{
				Name:       strings.Clone(portName),
				Protocol:   corev1.ProtocolTCP,
				Port:       port,
				TargetPort: intOrString(targetPort),
			}},
		},
	}
	for _, f := range families {
		svc.Spec.IPFamilies = append(svc.Spec.IPFamilies, f.name)
		svc.Spec.ClusterIPs = append(svc.Spec.ClusterIPs, f.clusterIP(service).String())
	}
	svc.Spec.ClusterIP = svc.Spec.ClusterIPs[0]
}

// fillSlice makes s a slice of a Service with some pods, as the API would give
// it. It uses the memory of the endpoints that s had. What a consumer may keep,
// strings, is new for each object, as it is after decoding.
func fillSlice(s *discoveryv1.EndpointSlice, f family, service, slice, nodes int, pods []int) {
	name, protocol, number := strings.Clone(portName), corev1.ProtocolTCP, int32(targetPort)
	endpoints := s.Endpoints[:0]
	*s = discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:         namespaceOf(service),
			Name:              sliceNameOf(service, slice, f),
			CreationTimestamp: createdAt,
			Labels: map[string]string{
				discoveryv1.LabelServiceName: nameOf(service),
				discoveryv1.LabelManagedBy:   "endpointslice-controller.k8s.io",
			},
		},
		AddressType: f.addressType,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Protocol: &protocol, Port: &number}},
	}
	for _, pod := range pods {
		node, zone := nodeOf(pod, nodes), fmt.Sprintf("zone-%d", pod%3)
		endpoints = append(endpoints, discoveryv1.Endpoint{
			Addresses:  []string{f.podIP(pod).String()},
			Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes, Terminating: &no},
			NodeName:   &node,
			Zone:       &zone,
			TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: s.Namespace, Name: fmt.Sprintf("%s-%d", nameOf(service), pod)},
		})
	}
	s.Endpoints = endpoints
}

var yes, no = true, false

// nodeOf is the node that a pod is on.
func nodeOf(pod, nodes int) string { return fmt.Sprintf("node-%d", pod%nodes) }
