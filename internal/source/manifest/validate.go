// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/slipstream-proxy/slipstream/internal/source"
)

// Validate returns the faults of an object whose defaults are set: of its metadata and
// of the fields that Slipstream reads, by the API server's rules for new objects. A
// Service must also have cluster IPs, which an API server would have allocated.
func Validate(o source.Object) field.ErrorList {
	switch o := o.(type) {
	case *corev1.Service:
		return validateService(o)
	case *discoveryv1.EndpointSlice:
		return validateSlice(o)
	case *corev1.Node:
		faults := metadata(&o.ObjectMeta, false, validation.IsDNS1123Subdomain)
		return append(faults, ranges(field.NewPath("spec", "podCIDRs"), o.Spec.PodCIDRs)...)
	case *networkingv1.ServiceCIDR:
		faults := metadata(&o.ObjectMeta, false, validation.IsDNS1123Subdomain)
		path := field.NewPath("spec", "cidrs")
		if len(o.Spec.CIDRs) == 0 {
			faults = append(faults, field.Required(path, "a ServiceCIDR needs at least one range"))
		}
		return append(faults, ranges(path, o.Spec.CIDRs)...)
	}
	return field.ErrorList{field.InternalError(nil, fmt.Errorf("no rules for %T", o))}
}

// metadata checks the metadata. rule returns the faults of a name.
func metadata(m *metav1.ObjectMeta, namespaced bool, rule func(string) []string) field.ErrorList {
	if m.Name == "" {
		return field.ErrorList{field.Required(field.NewPath("metadata", "name"), "")}
	}
	name := func(path *field.Path, value string) field.ErrorList { return invalid(path, value, rule(value)) }
	return apivalidation.ValidateObjectMetaWithOpts(m, namespaced, name, field.NewPath("metadata"))
}

func validateService(s *corev1.Service) field.ErrorList {
	spec, path := &s.Spec, field.NewPath("spec")
	// Names of Services are DNS labels since KEP-5311.
	faults := metadata(&s.ObjectMeta, true, validation.IsDNS1123Label)
	faults = append(faults, oneOf(path.Child("type"), spec.Type, corev1.ServiceTypeClusterIP,
		corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeExternalName)...)
	if spec.Type == corev1.ServiceTypeExternalName {
		return faults // without addresses and traffic
	}
	faults = append(faults, clusterIPs(path, spec)...)
	faults = append(faults, servicePorts(path.Child("ports"), spec)...)
	faults = append(faults, optional(path.Child("sessionAffinity"), &spec.SessionAffinity, corev1.ServiceAffinityNone, corev1.ServiceAffinityClientIP)...)
	if c := spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
		const day = 86400
		seconds := *c.ClientIP.TimeoutSeconds
		faults = append(faults, invalid(path.Child("sessionAffinityConfig", "clientIP", "timeoutSeconds"), seconds, validation.IsInRange(int(seconds), 1, day))...)
	}
	faults = append(faults, optional(path.Child("internalTrafficPolicy"), spec.InternalTrafficPolicy,
		corev1.ServiceInternalTrafficPolicyCluster, corev1.ServiceInternalTrafficPolicyLocal)...)
	faults = append(faults, optional(path.Child("externalTrafficPolicy"), &spec.ExternalTrafficPolicy,
		corev1.ServiceExternalTrafficPolicyCluster, corev1.ServiceExternalTrafficPolicyLocal)...)
	faults = append(faults, optional(path.Child("trafficDistribution"), spec.TrafficDistribution,
		corev1.ServiceTrafficDistributionPreferClose, corev1.ServiceTrafficDistributionPreferSameZone,
		corev1.ServiceTrafficDistributionPreferSameNode)...)
	if spec.HealthCheckNodePort != 0 {
		faults = append(faults, portNumber(path.Child("healthCheckNodePort"), spec.HealthCheckNodePort)...)
	}
	for i, value := range spec.ExternalIPs {
		faults = append(faults, unicast(path.Child("externalIPs").Index(i), value)...)
	}
	sourceRanges := path.Child("loadBalancerSourceRanges")
	if len(spec.LoadBalancerSourceRanges) > 0 && spec.Type != corev1.ServiceTypeLoadBalancer {
		faults = append(faults, field.Forbidden(sourceRanges, "only for type LoadBalancer"))
	}
	for i, value := range spec.LoadBalancerSourceRanges {
		// The API server accepts white space around a range only here.
		faults = append(faults, validation.IsValidCIDRForLegacyField(sourceRanges.Index(i), strings.TrimSpace(value), true, nil)...)
	}
	for i, in := range s.Status.LoadBalancer.Ingress {
		path := field.NewPath("status", "loadBalancer", "ingress").Index(i)
		if in.IP != "" {
			faults = append(faults, validation.IsValidIPForLegacyField(path.Child("ip"), in.IP, true, nil)...)
		}
		faults = append(faults, optional(path.Child("ipMode"), in.IPMode, corev1.LoadBalancerIPModeVIP, corev1.LoadBalancerIPModeProxy)...)
	}
	return faults
}

// clusterIPs checks spec.clusterIP, clusterIPs and ipFamilyPolicy.
func clusterIPs(path *field.Path, spec *corev1.ServiceSpec) (faults field.ErrorList) {
	list, ips := path.Child("clusterIPs"), spec.ClusterIPs
	if len(ips) == 0 {
		return field.ErrorList{field.Required(path.Child("clusterIP"),
			"a directory of manifests has no API server to allocate one: give an address, or None for a headless Service")}
	}
	if ips[0] != spec.ClusterIP {
		faults = append(faults, field.Invalid(path.Child("clusterIP"), spec.ClusterIP, fmt.Sprintf("must be clusterIPs[0], %q", ips[0])))
	}
	if ips[0] == corev1.ClusterIPNone {
		if len(ips) > 1 {
			faults = append(faults, field.Invalid(list.Index(0), ips[0], "must be the only one"))
		}
		if spec.Type != corev1.ServiceTypeClusterIP {
			faults = append(faults, field.Invalid(list.Index(0), ips[0], fmt.Sprintf("a Service of type %s needs a cluster IP", spec.Type)))
		}
		return faults
	}
	for i, value := range ips {
		faults = append(faults, unicast(list.Index(i), value)...)
	}
	faults = append(faults, twoFamilies(list, ips)...)
	if p := spec.IPFamilyPolicy; p != nil && *p == corev1.IPFamilyPolicyRequireDualStack && len(ips) < 2 {
		faults = append(faults, field.Required(list.Index(1),
			"a directory of manifests has no API server to allocate the second address that ipFamilyPolicy RequireDualStack asks for"))
	}
	return faults
}

func servicePorts(path *field.Path, spec *corev1.ServiceSpec) (faults field.ErrorList) {
	if len(spec.Ports) == 0 && spec.ClusterIP != corev1.ClusterIPNone {
		faults = append(faults, field.Required(path, "a Service with a cluster IP needs at least one port"))
	}
	type key struct {
		protocol corev1.Protocol
		port     int32
	}
	names, ports, nodePorts := map[string]bool{}, map[key]bool{}, map[key]bool{}
	for i, p := range spec.Ports {
		path := path.Index(i)
		if p.Name == "" && len(spec.Ports) > 1 {
			faults = append(faults, field.Required(path.Child("name"), "needed when there is more than one port"))
		} else {
			faults = append(faults, portName(path.Child("name"), p.Name, names)...)
		}
		faults = append(faults, protocol(path.Child("protocol"), p.Protocol)...)
		faults = append(faults, portNumber(path.Child("port"), p.Port)...)
		if k := (key{p.Protocol, p.Port}); ports[k] {
			faults = append(faults, field.Duplicate(path, fmt.Sprintf("%d/%s", p.Port, p.Protocol)))
		} else {
			ports[k] = true
		}
		if p.NodePort == 0 {
			continue
		}
		path = path.Child("nodePort")
		k := key{p.Protocol, p.NodePort}
		switch {
		case spec.Type == corev1.ServiceTypeClusterIP:
			faults = append(faults, field.Forbidden(path, "a Service of type ClusterIP has no node ports"))
		case nodePorts[k]:
			faults = append(faults, field.Duplicate(path, p.NodePort))
		default:
			faults = append(faults, portNumber(path, p.NodePort)...)
		}
		nodePorts[k] = true
	}
	return faults
}

func validateSlice(s *discoveryv1.EndpointSlice) field.ErrorList {
	faults := metadata(&s.ObjectMeta, true, validation.IsDNS1123Subdomain)
	faults = append(faults, oneOf(field.NewPath("addressType"), s.AddressType,
		discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6, discoveryv1.AddressTypeFQDN)...)
	for i, e := range s.Endpoints {
		path := field.NewPath("endpoints").Index(i).Child("addresses")
		if len(e.Addresses) == 0 {
			faults = append(faults, field.Required(path, "an endpoint needs at least one address"))
		}
		if s.AddressType != discoveryv1.AddressTypeIPv4 && s.AddressType != discoveryv1.AddressTypeIPv6 {
			continue // proxies ignore FQDN endpoints
		}
		for i, value := range e.Addresses {
			if f := family(value); f != "" && f != s.AddressType {
				faults = append(faults, field.Invalid(path.Index(i), value, fmt.Sprintf("must be an %s address, as addressType says", s.AddressType)))
				continue
			}
			faults = append(faults, unicast(path.Index(i), value)...)
		}
	}
	names := map[string]bool{}
	for i, p := range s.Ports {
		path := field.NewPath("ports").Index(i)
		faults = append(faults, portName(path.Child("name"), ptr.Deref(p.Name, ""), names)...)
		if p.Protocol != nil {
			faults = append(faults, protocol(path.Child("protocol"), *p.Protocol)...)
		}
		if p.Port != nil {
			faults = append(faults, portNumber(path.Child("port"), *p.Port)...)
		}
	}
	return faults
}

// unicast checks an IP address to which other hosts can send packets. Others are never reached,
// or belong to the node itself.
func unicast(path *field.Path, value string) field.ErrorList {
	if faults := validation.IsValidIPForLegacyField(path, value, true, nil); len(faults) > 0 {
		return faults
	}
	a, err := netip.ParseAddr(value)
	if err != nil || a.IsUnspecified() || a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsMulticast() {
		return field.ErrorList{field.Invalid(path, value, "must not be an unspecified, loopback, link-local or multicast address")}
	}
	return nil
}

// ranges checks a list of at most one range of addresses for each family.
func ranges(path *field.Path, values []string) (faults field.ErrorList) {
	for i, value := range values {
		faults = append(faults, validation.IsValidCIDR(path.Index(i), value)...)
	}
	return append(faults, twoFamilies(path, values)...)
}

// twoFamilies checks a list of at most one address or range for each family.
func twoFamilies(path *field.Path, values []string) field.ErrorList {
	if len(values) > 2 {
		return field.ErrorList{field.TooMany(path, len(values), 2)}
	}
	if len(values) == 2 && family(values[0]) != "" && family(values[0]) == family(values[1]) {
		return field.ErrorList{field.Invalid(path, values, "must not hold two of the same IP family")}
	}
	return nil
}

// family returns the IP family of an address or range, "" for other text.
func family(value string) discoveryv1.AddressType {
	address, _, _ := strings.Cut(value, "/")
	switch a, err := netip.ParseAddr(address); {
	case err != nil:
		return ""
	case a.Is4():
		return discoveryv1.AddressTypeIPv4
	}
	return discoveryv1.AddressTypeIPv6
}

// portName checks the name of a port and adds it to seen, in which it must not be.
func portName(path *field.Path, name string, seen map[string]bool) field.ErrorList {
	if seen[name] {
		return field.ErrorList{field.Duplicate(path, name)}
	}
	seen[name] = true
	if name == "" {
		return nil
	}
	return invalid(path, name, validation.IsDNS1123Label(name))
}

func portNumber(path *field.Path, port int32) field.ErrorList {
	return invalid(path, port, validation.IsValidPortNum(int(port)))
}

func protocol(path *field.Path, p corev1.Protocol) field.ErrorList {
	return oneOf(path, p, corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP)
}

// invalid returns a fault for each message.
func invalid(path *field.Path, value any, messages []string) (faults field.ErrorList) {
	for _, m := range messages {
		faults = append(faults, field.Invalid(path, value, m))
	}
	return faults
}

func oneOf[T ~string](path *field.Path, value T, allowed ...T) field.ErrorList {
	switch {
	case slices.Contains(allowed, value):
		return nil
	case value == "":
		return field.ErrorList{field.Required(path, fmt.Sprintf("must be one of %q", allowed))}
	}
	return field.ErrorList{field.NotSupported(path, value, allowed)}
}

// optional is oneOf for a field that may be unset.
func optional[T ~string](path *field.Path, value *T, allowed ...T) field.ErrorList {
	if value == nil || *value == "" {
		return nil
	}
	return oneOf(path, *value, allowed...)
}
