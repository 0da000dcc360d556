// SPDX-License-Identifier: Apache-2.0

package validate

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// The API server's limits on the size of an EndpointSlice. The documentation
// of the field still has 100 ports; Services may have more, so the server
// takes 20,000 since 1.21 (kubernetes/kubernetes#99795).
const (
	maxEndpoints  = 1000
	maxPorts      = 20000
	maxAddresses  = 100
	maxHints      = 8
	maxTopologies = 16
)

// EndpointSlice returns the faults of an EndpointSlice.
func EndpointSlice(s *discoveryv1.EndpointSlice) field.ErrorList {
	faults := metadata(&s.ObjectMeta, true, validation.IsDNS1123Subdomain)
	faults = append(faults, oneOf(field.NewPath("addressType"), s.AddressType,
		discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6, discoveryv1.AddressTypeFQDN)...)
	faults = append(faults, endpoints(field.NewPath("endpoints"), s)...)
	return append(faults, slicePorts(field.NewPath("ports"), s.Ports)...)
}

// endpoints checks the endpoints of a slice.
func endpoints(path *field.Path, s *discoveryv1.EndpointSlice) field.ErrorList {
	if len(s.Endpoints) > maxEndpoints {
		return field.ErrorList{field.TooMany(path, len(s.Endpoints), maxEndpoints)}
	}
	var faults field.ErrorList
	for i := range s.Endpoints {
		e, path := &s.Endpoints[i], path.Index(i)

		addresses := path.Child("addresses")
		switch n := len(e.Addresses); {
		case n == 0:
			faults = append(faults, field.Required(addresses, "an endpoint needs at least one address"))
		case n > maxAddresses:
			faults = append(faults, field.TooMany(addresses, n, maxAddresses))
		default:
			for i, value := range e.Addresses {
				faults = append(faults, endpointAddress(addresses.Index(i), s.AddressType, value)...)
			}
		}

		if e.Hostname != nil {
			faults = append(faults, invalid(path.Child("hostname"), *e.Hostname, validation.IsDNS1123Label(*e.Hostname))...)
		}
		if n := len(e.DeprecatedTopology); n > maxTopologies {
			faults = append(faults, field.TooMany(path.Child("deprecatedTopology"), n, maxTopologies))
		}
		if e.NodeName != nil {
			faults = append(faults, nodeName(path.Child("nodeName"), *e.NodeName)...)
		}
		if e.Zone != nil {
			faults = append(faults, invalid(path.Child("zone"), *e.Zone, validation.IsValidLabelValue(*e.Zone))...)
		}
		if e.Hints != nil {
			faults = append(faults, hints(path.Child("hints"), e.Hints)...)
		}
	}
	return faults
}

// endpointAddress checks one address against the type of its slice. A type
// that is not known has its own fault; nothing can be said of the address.
func endpointAddress(path *field.Path, t discoveryv1.AddressType, value string) field.ErrorList {
	switch t {
	case discoveryv1.AddressTypeFQDN:
		return validation.IsFullyQualifiedDomainName(path, value)
	case discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6:
		if f := family(value); f != "" && string(f) != string(t) {
			return field.ErrorList{field.Invalid(path, value, fmt.Sprintf("must be an %s address, as addressType says", t))}
		}
		return unicastIP(path, value)
	}
	return nil
}

// nodeName faults what cannot be the name of a Node.
func nodeName(path *field.Path, value string) field.ErrorList {
	return invalid(path, value, validation.IsDNS1123Subdomain(value))
}

// hints checks which zones and nodes an endpoint is meant for.
func hints(path *field.Path, h *discoveryv1.EndpointHints) field.ErrorList {
	var faults field.ErrorList

	zones := path.Child("forZones")
	if n := len(h.ForZones); n > maxHints {
		faults = append(faults, field.TooMany(zones, n, maxHints))
	}
	seen := map[string]bool{}
	for i, z := range h.ForZones {
		path := zones.Index(i).Child("name")
		switch {
		case z.Name == "":
			faults = append(faults, field.Required(path, "a hint names a zone"))
		case seen[z.Name]:
			faults = append(faults, field.Duplicate(path, z.Name))
		default:
			faults = append(faults, invalid(path, z.Name, validation.IsValidLabelValue(z.Name))...)
		}
		seen[z.Name] = true
	}

	nodes := path.Child("forNodes")
	if n := len(h.ForNodes); n > maxHints {
		faults = append(faults, field.TooMany(nodes, n, maxHints))
	}
	seen = map[string]bool{}
	for i, n := range h.ForNodes {
		path := nodes.Index(i).Child("name")
		if seen[n.Name] {
			faults = append(faults, field.Duplicate(path, n.Name))
		} else {
			faults = append(faults, nodeName(path, n.Name)...)
		}
		seen[n.Name] = true
	}
	return faults
}

// slicePorts checks the ports of a slice. A port without a number is allowed:
// it says that the endpoints' ports are not restricted.
func slicePorts(path *field.Path, ports []discoveryv1.EndpointPort) field.ErrorList {
	if len(ports) > maxPorts {
		return field.ErrorList{field.TooMany(path, len(ports), maxPorts)}
	}
	var faults field.ErrorList
	seen := map[string]bool{}
	for i := range ports {
		p, path := &ports[i], path.Index(i)

		var name string
		if p.Name != nil {
			name = *p.Name
		}
		if seen[name] {
			faults = append(faults, field.Duplicate(path.Child("name"), name))
		} else if name != "" {
			faults = append(faults, invalid(path.Child("name"), name, validation.IsDNS1123Label(name))...)
		}
		seen[name] = true

		var proto corev1.Protocol
		if p.Protocol != nil {
			proto = *p.Protocol
		}
		faults = append(faults, protocol(path.Child("protocol"), proto)...)
		if p.Port != nil {
			faults = append(faults, portNumber(path.Child("port"), *p.Port)...)
		}
		faults = append(faults, appProtocol(path.Child("appProtocol"), p.AppProtocol)...)
	}
	return faults
}
