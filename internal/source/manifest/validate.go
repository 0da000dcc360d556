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
		return append(faults, perFamily(field.NewPath("spec", "podCIDRs"), o.Spec.PodCIDRs, validation.IsValidCIDR)...)
	case *corev1.Namespace:
		return metadata(&o.ObjectMeta, false, validation.IsDNS1123Label)
	case *networkingv1.ServiceCIDR:
		faults := metadata(&o.ObjectMeta, false, validation.IsDNS1123Subdomain)
		path := field.NewPath("spec", "cidrs")
		if len(o.Spec.CIDRs) == 0 {
			faults = append(faults, field.Required(path, "a ServiceCIDR needs at least one range"))
		}
		return append(faults, perFamily(path, o.Spec.CIDRs, validation.IsValidCIDR)...)
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
	faults := slices.Concat(
		metadata(&s.ObjectMeta, true, validation.IsDNS1123Label), // names are DNS labels since KEP-5311
		oneOf(path.Child("type"), spec.Type, corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort,
			corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeExternalName),
	)
	if spec.Type == corev1.ServiceTypeExternalName {
		return faults // without addresses and traffic
	}
	sourceRanges := path.Child("loadBalancerSourceRanges")
	if len(spec.LoadBalancerSourceRanges) > 0 && spec.Type != corev1.ServiceTypeLoadBalancer {
		faults = append(faults, field.Forbidden(sourceRanges, "only for type LoadBalancer"))
	}
	if c := spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
		const day = 86400
		seconds := *c.ClientIP.TimeoutSeconds
		faults = append(faults, invalid(path.Child("sessionAffinityConfig", "clientIP", "timeoutSeconds"), seconds, validation.IsInRange(int(seconds), 1, day))...)
	}
	if spec.HealthCheckNodePort != 0 {
		faults = append(faults, portNumber(path.Child("healthCheckNodePort"), spec.HealthCheckNodePort)...)
	}
	return slices.Concat(
		faults,
		clusterIPs(path, spec),
		servicePorts(path.Child("ports"), spec),
		optional(path.Child("sessionAffinity"), spec.SessionAffinity, corev1.ServiceAffinityNone, corev1.ServiceAffinityClientIP),
		optional(path.Child("internalTrafficPolicy"), ptr.Deref(spec.InternalTrafficPolicy, ""),
			corev1.ServiceInternalTrafficPolicyCluster, corev1.ServiceInternalTrafficPolicyLocal),
		optional(path.Child("externalTrafficPolicy"), spec.ExternalTrafficPolicy,
			corev1.ServiceExternalTrafficPolicyCluster, corev1.ServiceExternalTrafficPolicyLocal),
		optional(path.Child("trafficDistribution"), ptr.Deref(spec.TrafficDistribution, ""), corev1.ServiceTrafficDistributionPreferClose,
			corev1.ServiceTrafficDistributionPreferSameZone, corev1.ServiceTrafficDistributionPreferSameNode),
		each(path.Child("externalIPs"), spec.ExternalIPs, unicast),
		each(sourceRanges, spec.LoadBalancerSourceRanges, func(path *field.Path, value string) field.ErrorList {
			// The API server accepts white space around a range only here.
			return validation.IsValidCIDRForLegacyField(path, strings.TrimSpace(value), true, nil)
		}),
		each(field.NewPath("status", "loadBalancer", "ingress"), s.Status.LoadBalancer.Ingress, ingress),
	)
}

func ingress(path *field.Path, in corev1.LoadBalancerIngress) field.ErrorList {
	faults := optional(path.Child("ipMode"), ptr.Deref(in.IPMode, ""), corev1.LoadBalancerIPModeVIP, corev1.LoadBalancerIPModeProxy)
	if in.IP == "" {
		return faults
	}
	return append(faults, validation.IsValidIPForLegacyField(path.Child("ip"), in.IP, true, nil)...)
}

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
	faults = append(faults, perFamily(list, ips, unicast)...)
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
	return append(faults, each(path, spec.Ports, func(path *field.Path, p corev1.ServicePort) field.ErrorList {
		faults := slices.Concat(protocol(path.Child("protocol"), p.Protocol), portNumber(path.Child("port"), p.Port))
		if p.Name == "" && len(spec.Ports) > 1 {
			faults = append(faults, field.Required(path.Child("name"), "needed when there is more than one port"))
		} else {
			faults = append(faults, portName(path.Child("name"), p.Name, names)...)
		}
		if seen(ports, key{p.Protocol, p.Port}) {
			faults = append(faults, field.Duplicate(path, fmt.Sprintf("%d/%s", p.Port, p.Protocol)))
		}
		path = path.Child("nodePort")
		switch {
		case p.NodePort == 0:
		case spec.Type == corev1.ServiceTypeClusterIP:
			faults = append(faults, field.Forbidden(path, "a Service of type ClusterIP has no node ports"))
		case seen(nodePorts, key{p.Protocol, p.NodePort}):
			faults = append(faults, field.Duplicate(path, p.NodePort))
		default:
			faults = append(faults, portNumber(path, p.NodePort)...)
		}
		return faults
	})...)
}

func validateSlice(s *discoveryv1.EndpointSlice) field.ErrorList {
	address := func(path *field.Path, value string) field.ErrorList {
		if f := family(value); f != "" && f != s.AddressType {
			return field.ErrorList{field.Invalid(path, value, fmt.Sprintf("must be an %s address, as addressType says", s.AddressType))}
		}
		return unicast(path, value)
	}
	endpoint := func(path *field.Path, e discoveryv1.Endpoint) field.ErrorList {
		path = path.Child("addresses")
		switch {
		case len(e.Addresses) == 0:
			return field.ErrorList{field.Required(path, "an endpoint needs at least one address")}
		case s.AddressType != discoveryv1.AddressTypeIPv4 && s.AddressType != discoveryv1.AddressTypeIPv6:
			return nil // proxies ignore FQDN endpoints
		}
		return each(path, e.Addresses, address)
	}
	names := map[string]bool{}
	port := func(path *field.Path, p discoveryv1.EndpointPort) field.ErrorList {
		return slices.Concat(
			portName(path.Child("name"), ptr.Deref(p.Name, ""), names),
			protocol(path.Child("protocol"), ptr.Deref(p.Protocol, corev1.ProtocolTCP)),
			portNumber(path.Child("port"), ptr.Deref(p.Port, 1)),
		)
	}
	return slices.Concat(
		metadata(&s.ObjectMeta, true, validation.IsDNS1123Subdomain),
		oneOf(field.NewPath("addressType"), s.AddressType, discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6, discoveryv1.AddressTypeFQDN),
		each(field.NewPath("endpoints"), s.Endpoints, endpoint),
		each(field.NewPath("ports"), s.Ports, port),
	)
}

func each[T any](path *field.Path, all []T, check func(*field.Path, T) field.ErrorList) (faults field.ErrorList) {
	for i, value := range all {
		faults = append(faults, check(path.Index(i), value)...)
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

// perFamily checks a list of at most one address or range for each family.
func perFamily(path *field.Path, values []string, check func(*field.Path, string) field.ErrorList) field.ErrorList {
	faults := each(path, values, check)
	switch {
	case len(values) > 2:
		return append(faults, field.TooMany(path, len(values), 2))
	case len(values) == 2 && family(values[0]) != "" && family(values[0]) == family(values[1]):
		return append(faults, field.Invalid(path, values, "must not hold two of the same IP family"))
	}
	return faults
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

// portName checks the name of a port and adds it to names, in which it must not be.
func portName(path *field.Path, name string, names map[string]bool) field.ErrorList {
	switch {
	case seen(names, name):
		return field.ErrorList{field.Duplicate(path, name)}
	case name == "":
		return nil
	}
	return invalid(path, name, validation.IsDNS1123Label(name))
}

// seen reports whether a set has a member, and adds it.
func seen[T comparable](set map[T]bool, member T) bool {
	was := set[member]
	set[member] = true
	return was
}

func portNumber(path *field.Path, port int32) field.ErrorList {
	return invalid(path, port, validation.IsValidPortNum(int(port)))
}

func protocol(path *field.Path, p corev1.Protocol) field.ErrorList {
	return oneOf(path, p, corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP)
}

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
func optional[T ~string](path *field.Path, value T, allowed ...T) field.ErrorList {
	if value == "" {
		return nil
	}
	return oneOf(path, value, allowed...)
}

// warnings returns the settings of an object that are valid but seldom intended, each as one line
// that starts with the field.
func warnings(o source.Object) (out []string) {
	warn := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	switch o := o.(type) {
	case *discoveryv1.EndpointSlice:
		if o.Labels[discoveryv1.LabelServiceName] == "" {
			warn("metadata.labels: without the label %s the slice belongs to no Service", discoveryv1.LabelServiceName)
		}
	case *corev1.Service:
		balanced := o.Spec.Type == corev1.ServiceTypeLoadBalancer
		hint := map[bool]string{true: " (allocateLoadBalancerNodePorts: false says that this is intended)"}[balanced]
		allocate := o.Spec.AllocateLoadBalancerNodePorts
		for i, p := range o.Spec.Ports {
			if p.NodePort == 0 && (o.Spec.Type == corev1.ServiceTypeNodePort || balanced && (allocate == nil || *allocate)) {
				warn("spec.ports[%d].nodePort: not set, and no API server allocates one: the port is not opened on nodes%s", i, hint)
			}
		}
		if balanced && o.Spec.HealthCheckNodePort == 0 && o.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
			warn("spec.healthCheckNodePort: not set, and no API server allocates one: load balancers cannot ask this node for its endpoints")
		}
	case *corev1.Node:
		for i, a := range o.Status.Addresses {
			if a.Type != corev1.NodeInternalIP && a.Type != corev1.NodeExternalIP {
				continue
			}
			if ip, err := netip.ParseAddr(a.Address); err != nil || ip.Zone() != "" {
				warn("status.addresses[%d].address: %q is not an IP address and is ignored", i, a.Address)
			}
		}
	}
	return out
}
