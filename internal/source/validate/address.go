// SPDX-License-Identifier: Apache-2.0

package validate

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ip faults what is not an IP address.
func ip(path *field.Path, value string) field.ErrorList {
	return validation.IsValidIPForLegacyField(path, value, true, nil)
}

// unicastIP faults what is not an IP address that a packet from elsewhere can
// be sent to. Programming one of the others would take traffic away from the
// node itself (loopback, link-local) or mean nothing at all.
func unicastIP(path *field.Path, value string) field.ErrorList {
	if faults := ip(path, value); len(faults) > 0 {
		return faults
	}
	a, err := netip.ParseAddr(value)
	if err != nil { // ip accepts nothing that netip does not; be safe
		return field.ErrorList{field.Invalid(path, value, err.Error())}
	}
	var what string
	switch {
	case a.IsUnspecified():
		what = "the unspecified address"
	case a.IsLoopback():
		what = "in the loopback range (127.0.0.0/8, ::1/128)"
	case a.IsLinkLocalUnicast():
		what = "in the link-local range (169.254.0.0/16, fe80::/10)"
	case a.IsMulticast():
		what = "in the multicast range (224.0.0.0/4, ff00::/8)"
	default:
		return nil
	}
	return field.ErrorList{field.Invalid(path, value, "must not be "+what)}
}

// cidr faults what is not a prefix such as 10.0.0.0/8.
func cidr(path *field.Path, value string) field.ErrorList {
	return validation.IsValidCIDRForLegacyField(path, value, true, nil)
}

// family returns the IP family of an address or prefix, or "" when it is
// neither; a fault of its own says so elsewhere.
func family(value string) corev1.IPFamily {
	a, err := netip.ParseAddr(value)
	if err != nil {
		p, err := netip.ParsePrefix(value)
		if err != nil {
			return ""
		}
		a = p.Addr()
	}
	if a.Is4() {
		return corev1.IPv4Protocol
	}
	return corev1.IPv6Protocol
}

// twoFamilies faults a list of addresses or prefixes that has more than two
// members or two of the same family: a dual-stack list has one of each.
func twoFamilies(path *field.Path, values []string) field.ErrorList {
	if len(values) > 2 {
		return field.ErrorList{field.TooMany(path, len(values), 2)}
	}
	if len(values) == 2 {
		if f := family(values[0]); f != "" && f == family(values[1]) {
			return field.ErrorList{field.Invalid(path, slices.Clone(values), "may not hold two of the same IP family")}
		}
	}
	return nil
}
