// SPDX-License-Identifier: Apache-2.0

package validate

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// maxSessionAffinity is the longest ClientIP session affinity, in seconds: a
// day.
const maxSessionAffinity = 86400

// Service returns the faults of a Service. That it has a cluster IP is asked
// by Allocated, not here.
func Service(s *corev1.Service) field.ErrorList {
	var (
		spec = &s.Spec
		path = field.NewPath("spec")
		// Names of Services are DNS labels since KEP-5311; before that they
		// could not start with a digit.
		faults = metadata(&s.ObjectMeta, true, validation.IsDNS1123Label)
	)
	faults = append(faults, oneOf(path.Child("type"), spec.Type,
		corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort,
		corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeExternalName)...)
	faults = append(faults, servicePorts(path.Child("ports"), spec)...)
	faults = append(faults, metav1validation.ValidateLabels(spec.Selector, path.Child("selector"))...)
	faults = append(faults, clusterIPs(path, spec)...)
	faults = append(faults, externalName(path.Child("externalName"), spec)...)
	faults = append(faults, affinity(path, spec)...)
	faults = append(faults, trafficPolicies(path, spec)...)
	for i, value := range spec.ExternalIPs {
		faults = append(faults, unicastIP(path.Child("externalIPs").Index(i), value)...)
	}
	faults = append(faults, loadBalancer(path, spec)...)
	faults = append(faults, ingress(field.NewPath("status", "loadBalancer", "ingress"), s)...)
	return faults
}

// headless tells whether the Service asks for no cluster IP.
func headless(spec *corev1.ServiceSpec) bool {
	return spec.ClusterIP == corev1.ClusterIPNone
}

// clusterIPs checks spec.clusterIP, clusterIPs, ipFamilies and ipFamilyPolicy,
// which say parts of the same thing.
func clusterIPs(path *field.Path, spec *corev1.ServiceSpec) field.ErrorList {
	var (
		faults field.ErrorList
		list   = path.Child("clusterIPs")
		ips    = spec.ClusterIPs
	)
	if spec.Type == corev1.ServiceTypeExternalName {
		if spec.ClusterIP != "" || len(ips) > 0 {
			faults = append(faults, field.Forbidden(path.Child("clusterIP"), "an ExternalName Service has no cluster IP"))
		}
		if len(spec.IPFamilies) > 0 {
			faults = append(faults, field.Forbidden(path.Child("ipFamilies"), "an ExternalName Service has no cluster IP"))
		}
		if spec.IPFamilyPolicy != nil {
			faults = append(faults, field.Forbidden(path.Child("ipFamilyPolicy"), "an ExternalName Service has no cluster IP"))
		}
		return faults
	}

	if len(ips) > 0 && ips[0] != spec.ClusterIP {
		faults = append(faults, field.Invalid(path.Child("clusterIP"), spec.ClusterIP,
			fmt.Sprintf("must be the same as clusterIPs[0], %q", ips[0])))
	}
	if len(ips) == 0 && spec.ClusterIP != "" {
		faults = append(faults, field.Required(list, "must hold clusterIP"))
	}
	for i, value := range ips {
		switch {
		case value != corev1.ClusterIPNone:
			faults = append(faults, unicastIP(list.Index(i), value)...)
		case len(ips) > 1:
			faults = append(faults, field.Invalid(list.Index(i), value, "must be the only one"))
		case spec.Type == corev1.ServiceTypeNodePort || spec.Type == corev1.ServiceTypeLoadBalancer:
			faults = append(faults, field.Invalid(list.Index(i), value,
				fmt.Sprintf("a Service of type %s needs a cluster IP", spec.Type)))
		}
	}
	faults = append(faults, twoFamilies(list, ips)...)
	return append(faults, families(path, spec)...)
}

// families checks that spec.ipFamilies and ipFamilyPolicy fit the cluster IPs.
func families(path *field.Path, spec *corev1.ServiceSpec) field.ErrorList {
	var (
		faults field.ErrorList
		list   = path.Child("ipFamilies")
		seen   = map[corev1.IPFamily]bool{}
	)
	for i, f := range spec.IPFamilies {
		if bad := oneOf(list.Index(i), f, corev1.IPv4Protocol, corev1.IPv6Protocol); len(bad) > 0 {
			faults = append(faults, bad...)
			continue
		}
		if seen[f] {
			faults = append(faults, field.Duplicate(list.Index(i), f))
		}
		seen[f] = true
	}
	if policy := spec.IPFamilyPolicy; policy != nil {
		path := path.Child("ipFamilyPolicy")
		faults = append(faults, oneOf(path, *policy, corev1.IPFamilyPolicySingleStack,
			corev1.IPFamilyPolicyPreferDualStack, corev1.IPFamilyPolicyRequireDualStack)...)
		if *policy == corev1.IPFamilyPolicySingleStack && (len(spec.ClusterIPs) > 1 || len(spec.IPFamilies) > 1) {
			faults = append(faults, field.Invalid(path, *policy, "two IP families are given"))
		}
	}

	if headless(spec) || len(spec.ClusterIPs) == 0 {
		return faults // there are no addresses for the families to fit
	}
	for i, value := range spec.ClusterIPs {
		f := family(value)
		if i < len(spec.IPFamilies) && f != "" && f != spec.IPFamilies[i] {
			faults = append(faults, field.Invalid(list.Index(i), spec.IPFamilies[i],
				fmt.Sprintf("clusterIPs[%d], %s, is of the other family", i, value)))
		}
	}
	known := !slices.ContainsFunc(spec.ClusterIPs, func(ip string) bool { return family(ip) == "" })
	if known && len(spec.IPFamilies) != len(spec.ClusterIPs) {
		faults = append(faults, field.Invalid(list, spec.IPFamilies,
			fmt.Sprintf("must have as many members as clusterIPs, %d", len(spec.ClusterIPs))))
	}
	return faults
}

// externalName must be a DNS name, which may end in a dot, if it is used.
func externalName(path *field.Path, spec *corev1.ServiceSpec) field.ErrorList {
	if spec.Type != corev1.ServiceTypeExternalName {
		return nil // ignored, as by the API server
	}
	if spec.ExternalName == "" {
		return field.ErrorList{field.Required(path, "an ExternalName Service needs one")}
	}
	return invalid(path, spec.ExternalName, validation.IsDNS1123Subdomain(strings.TrimSuffix(spec.ExternalName, ".")))
}

// affinity checks spec.sessionAffinity and its timeout.
func affinity(path *field.Path, spec *corev1.ServiceSpec) field.ErrorList {
	faults := oneOf(path.Child("sessionAffinity"), spec.SessionAffinity,
		corev1.ServiceAffinityNone, corev1.ServiceAffinityClientIP)
	config := spec.SessionAffinityConfig
	path = path.Child("sessionAffinityConfig")
	switch spec.SessionAffinity {
	case corev1.ServiceAffinityNone:
		if config != nil {
			faults = append(faults, field.Forbidden(path, "there is no session affinity to configure"))
		}
	case corev1.ServiceAffinityClientIP:
		path = path.Child("clientIP", "timeoutSeconds")
		if config == nil || config.ClientIP == nil || config.ClientIP.TimeoutSeconds == nil {
			return append(faults, field.Required(path, "ClientIP session affinity has a timeout"))
		}
		seconds := *config.ClientIP.TimeoutSeconds
		for _, m := range validation.IsInRange(int(seconds), 1, maxSessionAffinity) {
			faults = append(faults, field.Invalid(path, seconds, m))
		}
	}
	return faults
}

// external tells whether the Service can be reached from outside the cluster,
// which is what an external traffic policy is about.
func external(spec *corev1.ServiceSpec) bool {
	return spec.Type == corev1.ServiceTypeNodePort || spec.Type == corev1.ServiceTypeLoadBalancer ||
		spec.Type == corev1.ServiceTypeClusterIP && len(spec.ExternalIPs) > 0
}

// trafficPolicies checks the two traffic policies, the distribution and the
// port for health checks that comes with the policy Local.
func trafficPolicies(path *field.Path, spec *corev1.ServiceSpec) field.ErrorList {
	var faults field.ErrorList

	if p := spec.InternalTrafficPolicy; p != nil {
		faults = append(faults, oneOf(path.Child("internalTrafficPolicy"), *p,
			corev1.ServiceInternalTrafficPolicyCluster, corev1.ServiceInternalTrafficPolicyLocal)...)
	}

	policy := path.Child("externalTrafficPolicy")
	switch {
	case external(spec):
		faults = append(faults, oneOf(policy, spec.ExternalTrafficPolicy,
			corev1.ServiceExternalTrafficPolicyCluster, corev1.ServiceExternalTrafficPolicyLocal)...)
	case spec.ExternalTrafficPolicy != "":
		faults = append(faults, field.Invalid(policy, spec.ExternalTrafficPolicy,
			"only for Services that can be reached from outside: of type NodePort or LoadBalancer, or with externalIPs"))
	}

	if port := spec.HealthCheckNodePort; port != 0 {
		path := path.Child("healthCheckNodePort")
		if spec.Type == corev1.ServiceTypeLoadBalancer && spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
			faults = append(faults, optionalPort(path, port)...)
		} else {
			faults = append(faults, field.Forbidden(path, "only for type LoadBalancer with externalTrafficPolicy Local"))
		}
	}

	if d := spec.TrafficDistribution; d != nil {
		faults = append(faults, oneOf(path.Child("trafficDistribution"), *d,
			corev1.ServiceTrafficDistributionPreferClose,
			corev1.ServiceTrafficDistributionPreferSameZone,
			corev1.ServiceTrafficDistributionPreferSameNode)...)
	}
	return faults
}

// loadBalancer checks the fields of spec that only load balancers have.
func loadBalancer(path *field.Path, spec *corev1.ServiceSpec) field.ErrorList {
	var faults field.ErrorList
	ranges := path.Child("loadBalancerSourceRanges")
	for i, value := range spec.LoadBalancerSourceRanges {
		// White space around a range is allowed here and nowhere else, since
		// the ranges once came from a list in an annotation.
		faults = append(faults, cidr(ranges.Index(i), strings.TrimSpace(value))...)
	}
	if class := spec.LoadBalancerClass; class != nil {
		faults = append(faults, invalid(path.Child("loadBalancerClass"), *class, validation.IsQualifiedName(*class))...)
	}
	if spec.Type == corev1.ServiceTypeLoadBalancer {
		return faults
	}
	const only = "only for type LoadBalancer"
	if len(spec.LoadBalancerSourceRanges) > 0 {
		faults = append(faults, field.Forbidden(ranges, only))
	}
	if spec.LoadBalancerClass != nil {
		faults = append(faults, field.Forbidden(path.Child("loadBalancerClass"), only))
	}
	if spec.AllocateLoadBalancerNodePorts != nil {
		faults = append(faults, field.Forbidden(path.Child("allocateLoadBalancerNodePorts"), only))
	}
	return faults
}

// ingress checks the addresses that a load balancer has given to the Service.
func ingress(path *field.Path, s *corev1.Service) field.ErrorList {
	var faults field.ErrorList
	list := s.Status.LoadBalancer.Ingress
	if len(list) > 0 && s.Spec.Type != corev1.ServiceTypeLoadBalancer {
		faults = append(faults, field.Forbidden(path, "only for type LoadBalancer"))
	}
	for i := range list {
		in, path := &list[i], path.Index(i)
		if in.IP != "" {
			faults = append(faults, ip(path.Child("ip"), in.IP)...)
		}
		mode := path.Child("ipMode")
		switch {
		case in.IP == "" && in.IPMode != nil:
			faults = append(faults, field.Forbidden(mode, "there is no ip for it"))
		case in.IP != "" && in.IPMode == nil:
			faults = append(faults, field.Required(mode, "must go with ip"))
		case in.IPMode != nil:
			faults = append(faults, oneOf(mode, *in.IPMode, corev1.LoadBalancerIPModeVIP, corev1.LoadBalancerIPModeProxy)...)
		}
		if in.Hostname != "" {
			hostname := path.Child("hostname")
			if family(in.Hostname) != "" {
				faults = append(faults, field.Invalid(hostname, in.Hostname, "must be a DNS name, not an IP address"))
			} else {
				faults = append(faults, invalid(hostname, in.Hostname, validation.IsDNS1123Subdomain(in.Hostname))...)
			}
		}
	}
	return faults
}
