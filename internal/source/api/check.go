// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/slipstream-proxy/slipstream/internal/source"
)

// leaveOut takes out of an object the addresses that would harm the node if they were
// programmed, such as loopback ones, which would take away traffic of its own; and
// returns an error, one for all endpoints of a slice. An API server of today does not
// store such objects. Text that is no address at all is left to package desired.
func leaveOut(o source.Object) (errs []error) {
	switch o := o.(type) {
	case *corev1.Service:
		s := &o.Spec
		for i := range s.ClusterIPs {
			if what := special(s.ClusterIPs[i]); what != "" {
				errs = append(errs, fmt.Errorf("spec.clusterIPs[%d]: %s is %s and is passed over", i, s.ClusterIPs[i], what))
			}
		}
		s.ClusterIPs = slices.DeleteFunc(s.ClusterIPs, func(ip string) bool { return special(ip) != "" })
		if what := special(s.ClusterIP); what != "" {
			if len(errs) == 0 { // else it was told as the first of them
				errs = append(errs, fmt.Errorf("spec.clusterIP: %s is %s and is passed over", s.ClusterIP, what))
			}
			s.ClusterIP = ""
		}
	case *discoveryv1.EndpointSlice:
		bad := 0
		for i := range o.Endpoints {
			what := specialEndpoint(&o.Endpoints[i])
			if what == "" {
				continue
			}
			if bad++; bad == 1 {
				errs = append(errs, fmt.Errorf("endpoints[%d].addresses[0]: %s is %s and is passed over", i, o.Endpoints[i].Addresses[0], what))
			}
		}
		if bad > 0 {
			o.Endpoints = slices.DeleteFunc(o.Endpoints, func(e discoveryv1.Endpoint) bool { return specialEndpoint(&e) != "" })
		}
		if bad > 1 {
			errs[0] = fmt.Errorf("%w, as are %d others of its endpoints", errs[0], bad-1)
		}
	}
	return errs
}

// specialEndpoint is special for the address of an endpoint that counts. An API
// server takes no link-local ones either.
func specialEndpoint(e *discoveryv1.Endpoint) string {
	if len(e.Addresses) == 0 {
		return ""
	}
	if ip, err := netip.ParseAddr(e.Addresses[0]); err == nil && ip.Unmap().IsLinkLocalUnicast() {
		return "link-local"
	}
	return special(e.Addresses[0])
}

// special says why nothing can be sent to an address from elsewhere; "" for others.
func special(text string) string {
	ip, err := netip.ParseAddr(text)
	switch ip = ip.Unmap(); {
	case err != nil:
		return ""
	case ip.IsUnspecified():
		return "unspecified"
	case ip.IsLoopback():
		return "a loopback address"
	case ip.IsMulticast():
		return "a multicast address"
	}
	return ""
}
