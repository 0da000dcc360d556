// SPDX-License-Identifier: Apache-2.0

package validate

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// portNumber faults what is outside 1..65535.
func portNumber(path *field.Path, port int32) field.ErrorList {
	var faults field.ErrorList
	for _, m := range validation.IsValidPortNum(int(port)) {
		faults = append(faults, field.Invalid(path, port, m))
	}
	return faults
}

// optionalPort is portNumber for fields in which 0 says "none".
func optionalPort(path *field.Path, port int32) field.ErrorList {
	if port == 0 {
		return nil
	}
	return portNumber(path, port)
}

// protocol faults what is none of the protocols that a Service can have.
func protocol(path *field.Path, p corev1.Protocol) field.ErrorList {
	return oneOf(path, p, corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP)
}

// appProtocol faults what is neither unset nor a name as labels have them.
func appProtocol(path *field.Path, p *string) field.ErrorList {
	if p == nil {
		return nil
	}
	return invalid(path, *p, validation.IsQualifiedName(*p))
}

// servicePorts checks spec.ports of a Service.
func servicePorts(path *field.Path, spec *corev1.ServiceSpec) field.ErrorList {
	type portKey struct {
		protocol corev1.Protocol
		port     int32
	}
	var (
		faults    field.ErrorList
		names     = map[string]bool{}
		ports     = map[portKey]bool{}
		nodePorts = map[portKey]bool{}
	)
	if len(spec.Ports) == 0 && spec.Type != corev1.ServiceTypeExternalName && !headless(spec) {
		faults = append(faults, field.Required(path, "a Service with a cluster IP needs at least one port"))
	}
	for i := range spec.Ports {
		p, path := &spec.Ports[i], path.Index(i)

		switch {
		case p.Name == "" && len(spec.Ports) > 1:
			faults = append(faults, field.Required(path.Child("name"), "needed when there is more than one port"))
		case p.Name != "" && names[p.Name]:
			faults = append(faults, field.Duplicate(path.Child("name"), p.Name))
		case p.Name != "":
			faults = append(faults, invalid(path.Child("name"), p.Name, validation.IsDNS1123Label(p.Name))...)
		}
		names[p.Name] = true

		faults = append(faults, protocol(path.Child("protocol"), p.Protocol)...)
		faults = append(faults, appProtocol(path.Child("appProtocol"), p.AppProtocol)...)
		faults = append(faults, portNumber(path.Child("port"), p.Port)...)
		if p.TargetPort != intstr.FromInt32(p.Port) { // the default, or said just now
			faults = append(faults, targetPort(path.Child("targetPort"), p.TargetPort)...)
		}
		faults = append(faults, nodePort(path.Child("nodePort"), spec.Type, p.NodePort)...)

		if key := (portKey{p.Protocol, p.Port}); ports[key] {
			faults = append(faults, field.Duplicate(path, fmt.Sprintf("%d/%s", p.Port, p.Protocol)))
		} else {
			ports[key] = true
		}
		if key := (portKey{p.Protocol, p.NodePort}); p.NodePort != 0 && nodePorts[key] {
			faults = append(faults, field.Duplicate(path.Child("nodePort"), p.NodePort))
		} else {
			nodePorts[key] = true
		}
	}
	return faults
}

// targetPort is a number, or the name that a container gives to its port.
func targetPort(path *field.Path, p intstr.IntOrString) field.ErrorList {
	if p.Type == intstr.String {
		return invalid(path, p.StrVal, validation.IsValidPortName(p.StrVal))
	}
	return portNumber(path, p.IntVal)
}

// nodePort may be given for the two types that have node ports; 0 is none.
func nodePort(path *field.Path, t corev1.ServiceType, port int32) field.ErrorList {
	if port != 0 && (t == corev1.ServiceTypeClusterIP || t == corev1.ServiceTypeExternalName) {
		return field.ErrorList{field.Forbidden(path, fmt.Sprintf("a Service of type %s has no node ports", t))}
	}
	return optionalPort(path, port)
}
