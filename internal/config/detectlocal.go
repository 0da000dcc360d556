// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
	kubeproxy "k8s.io/kube-proxy/config/v1alpha1"
)

// detectLocalModes are the values of detectLocalMode, the default first.
var detectLocalModes = []kubeproxy.LocalMode{"ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix"}

// validateDetectLocal checks the settings by which traffic of this node's pods is
// recognized. As in kube-proxy, settings that the mode does not use are not checked.
func validateDetectLocal(k *kubeproxy.KubeProxyConfiguration) field.ErrorList {
	path := field.NewPath("detectLocal")
	switch k.DetectLocalMode {
	case "ClusterCIDR":
		return validateClusterCIDR(k.ClusterCIDR)
	case "BridgeInterface":
		return validateInterface(path.Child("bridgeInterface"), k.DetectLocal.BridgeInterface, k.DetectLocalMode)
	case "InterfaceNamePrefix":
		return validateInterface(path.Child("interfaceNamePrefix"), k.DetectLocal.InterfaceNamePrefix, k.DetectLocalMode)
	}
	if slices.Contains(detectLocalModes, k.DetectLocalMode) {
		return nil
	}
	return field.ErrorList{field.NotSupported(field.NewPath("detectLocalMode"), k.DetectLocalMode, detectLocalModes)}
}

// validateClusterCIDR accepts one range for each family, or the empty string.
func validateClusterCIDR(text string) (errs field.ErrorList) {
	path := field.NewPath("clusterCIDR")
	if text == "" {
		return nil
	}
	families := map[bool]string{}
	for _, one := range strings.Split(text, ",") {
		p, ok := ParseRange(one)
		if !ok {
			errs = append(errs, field.Invalid(path, one, notRange))
			continue
		}
		if other, both := families[p.Addr().Is4()]; both {
			errs = append(errs, field.Invalid(path, text, fmt.Sprintf("%s and %s are of the same family", other, one)))
		}
		families[p.Addr().Is4()] = one
	}
	return errs
}

// maxInterface is the maximum length of an interface name in bytes: IFNAMSIZ without the
// final zero.
const maxInterface = 15

// validateInterface checks an interface name or a prefix of one.
func validateInterface(path *field.Path, name string, mode kubeproxy.LocalMode) field.ErrorList {
	switch {
	case name == "":
		return field.ErrorList{field.Required(path, fmt.Sprintf("detectLocalMode %s requires it", mode))}
	case len(name) > maxInterface:
		return field.ErrorList{field.TooLong(path, name, maxInterface)}
	case strings.ContainsAny(name, "/: \t\n"):
		return field.ErrorList{field.Invalid(path, name, "contains a character that is not allowed in interface names")}
	}
	return nil
}
