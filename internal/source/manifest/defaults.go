// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/slipstream-proxy/slipstream/internal/source"
)

// setDefaults fills in what an API server fills in when an object is created,
// as far as a Service proxy depends on it. It never replaces what is there and
// chooses nothing: no cluster IPs, no node ports.
func setDefaults(o source.Object) {
	switch o := o.(type) {
	case *corev1.Service:
		defaultNamespace(o)
		defaultService(&o.Spec)
		for i := range o.Status.LoadBalancer.Ingress {
			in := &o.Status.LoadBalancer.Ingress[i]
			if in.IP != "" && in.IPMode == nil {
				in.IPMode = new(corev1.LoadBalancerIPModeVIP)
			}
		}
	case *discoveryv1.EndpointSlice:
		defaultNamespace(o)
		for i := range o.Ports {
			p := &o.Ports[i]
			if p.Name == nil {
				p.Name = new("")
			}
			if p.Protocol == nil {
				p.Protocol = new(corev1.ProtocolTCP)
			}
		}
	case *corev1.Node:
		o.Spec.PodCIDR, o.Spec.PodCIDRs = firstAndAll(o.Spec.PodCIDR, o.Spec.PodCIDRs)
	}
}

// defaultNamespace sets the namespace that kubectl uses unless told otherwise.
func defaultNamespace(o source.Object) {
	if o.GetNamespace() == "" {
		o.SetNamespace(corev1.NamespaceDefault)
	}
}

func defaultService(spec *corev1.ServiceSpec) {
	setIfZero(&spec.Type, corev1.ServiceTypeClusterIP)
	for i := range spec.Ports {
		p := &spec.Ports[i]
		setIfZero(&p.Protocol, corev1.ProtocolTCP)
		if p.TargetPort == intstr.FromInt32(0) || p.TargetPort == intstr.FromString("") {
			p.TargetPort = intstr.FromInt32(p.Port)
		}
	}

	setIfZero(&spec.SessionAffinity, corev1.ServiceAffinityNone)
	switch spec.SessionAffinity {
	case corev1.ServiceAffinityNone:
		spec.SessionAffinityConfig = nil
	case corev1.ServiceAffinityClientIP:
		if spec.SessionAffinityConfig == nil {
			spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{}
		}
		if spec.SessionAffinityConfig.ClientIP == nil {
			spec.SessionAffinityConfig.ClientIP = &corev1.ClientIPConfig{}
		}
		if spec.SessionAffinityConfig.ClientIP.TimeoutSeconds == nil {
			spec.SessionAffinityConfig.ClientIP.TimeoutSeconds = new(corev1.DefaultClientIPServiceAffinitySeconds)
		}
	}

	if spec.Type == corev1.ServiceTypeExternalName {
		return // it has neither addresses nor traffic
	}
	if spec.InternalTrafficPolicy == nil {
		spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyCluster)
	}
	switch {
	case spec.Type == corev1.ServiceTypeNodePort, spec.Type == corev1.ServiceTypeLoadBalancer,
		spec.Type == corev1.ServiceTypeClusterIP && len(spec.ExternalIPs) > 0:
		setIfZero(&spec.ExternalTrafficPolicy, corev1.ServiceExternalTrafficPolicyCluster)
	}
	if spec.Type == corev1.ServiceTypeLoadBalancer && spec.AllocateLoadBalancerNodePorts == nil {
		spec.AllocateLoadBalancerNodePorts = new(true)
	}
	spec.ClusterIP, spec.ClusterIPs = firstAndAll(spec.ClusterIP, spec.ClusterIPs)
	defaultFamilies(spec)
}

// defaultFamilies derives the IP families from the cluster IPs and the policy
// from the number of families. A headless Service has no addresses to derive
// them from.
func defaultFamilies(spec *corev1.ServiceSpec) {
	if len(spec.IPFamilies) == 0 {
		var families []corev1.IPFamily
		for _, ip := range spec.ClusterIPs {
			a, err := netip.ParseAddr(ip)
			if err != nil {
				families = nil // validation tells what is wrong
				break
			}
			f := corev1.IPv6Protocol
			if a.Is4() {
				f = corev1.IPv4Protocol
			}
			families = append(families, f)
		}
		spec.IPFamilies = families
	}
	if spec.IPFamilyPolicy == nil && len(spec.IPFamilies) > 0 {
		policy := corev1.IPFamilyPolicySingleStack
		if len(spec.IPFamilies) > 1 {
			policy = corev1.IPFamilyPolicyRequireDualStack
		}
		spec.IPFamilyPolicy = &policy
	}
}

// firstAndAll completes a pair of fields of which the older holds the first
// value of the newer, e.g. clusterIP and clusterIPs.
func firstAndAll(first string, all []string) (string, []string) {
	switch {
	case first == "" && len(all) > 0:
		return all[0], all
	case first != "" && len(all) == 0:
		return first, []string{first}
	}
	return first, all
}

// setIfZero sets what has the zero value of its type.
func setIfZero[T comparable](p *T, value T) {
	var zero T
	if *p == zero {
		*p = value
	}
}
