// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// labelProxyName on a Service (and its slices) gives it to another proxy.
const labelProxyName = "service.kubernetes.io/service-proxy-name"

// service is what is kept of a Service: its spec, once known, and the slices
// that name it, which may come before it.
type service struct {
	name   types.NamespacedName
	spec   *serviceSpec // nil while there is no Service to proxy
	ports  []*port      // as spec.ports
	slices []*slice
}

// serviceSpec is what matters of a Service's spec.
type serviceSpec struct {
	created    int64 // Unix time in seconds
	clusterIPs []netip.Addr
	ports      []portSpec
	policy     policy
}

type portSpec struct {
	name     string
	protocol Protocol
	number   uint16
}

// port is a port of a Service that is proxied.
type port struct {
	portSpec
	name    ServicePort
	service *service
	policy  policy
	pools   [families]*pool // nil for a family in which the Service has no address
}

// compactService takes from a Service what is proxied; nil when nothing is.
func (s *State) compactService(in *corev1.Service) *serviceSpec {
	if in.Spec.Type == corev1.ServiceTypeExternalName || notForUs(in.Labels) {
		return nil
	}
	out := &serviceSpec{policy: policyOf(in)}
	if t := in.CreationTimestamp; !t.IsZero() {
		out.created = t.Unix()
	}
	ips := in.Spec.ClusterIPs
	if len(ips) == 0 {
		ips = []string{in.Spec.ClusterIP}
	}
	for i, text := range ips {
		if text == "" || text == corev1.ClusterIPNone {
			return nil // headless
		}
		ip, err := netip.ParseAddr(text)
		if err != nil {
			s.serviceProblem(in, fmt.Sprintf("spec.clusterIPs[%d]", i), "not an IP address: "+text)
			continue
		}
		if ip = ip.Unmap(); !slices.Contains(out.clusterIPs, ip) {
			out.clusterIPs = append(out.clusterIPs, ip)
		}
	}
	for i, p := range in.Spec.Ports {
		spec := portSpec{p.Name, protocolOf(p.Protocol), uint16(p.Port)}
		switch {
		case spec.protocol == 0:
			s.serviceProblem(in, fmt.Sprintf("spec.ports[%d].protocol", i), "no such protocol: "+string(p.Protocol))
		case p.Port < 1 || p.Port >= 1<<16:
			s.serviceProblem(in, fmt.Sprintf("spec.ports[%d].port", i), fmt.Sprintf("not a port number: %d", p.Port))
		case slices.ContainsFunc(out.ports, spec.collides):
			s.serviceProblem(in, fmt.Sprintf("spec.ports[%d]", i), "the Service has a port of that name or number already")
		default:
			out.ports = append(out.ports, spec)
		}
	}
	return out
}

// collides says whether two ports of one Service cannot be told apart, by
// clients or by slices.
func (p portSpec) collides(q portSpec) bool {
	return p.protocol == q.protocol && (p.number == q.number || p.name == q.name)
}

func (s *State) serviceProblem(in *corev1.Service, field, reason string) {
	s.problems = append(s.problems, Problem{"Service " + in.Namespace + "/" + in.Name, field, reason})
}

// mergedCondition is the condition of an endpoint over all slices that have it.
func (svc *service) mergedCondition(p *pool, b Backend) (c condition) {
	first := true
	for _, sl := range svc.slices {
		if sl.family != p.family || sl.portNumber(p.port) != b.port {
			continue
		}
		for _, e := range sl.endpoints {
			if e.ip != b.ip {
				continue
			}
			if first {
				c, first = e.cond, false
			} else {
				c = c.merge(e.cond)
			}
		}
	}
	return c
}

// portNumber is the port number that the slice's endpoints have for a Service
// port, or 0. Both go by the port's name and protocol.
func (sl *slice) portNumber(p *port) uint16 {
	for _, sp := range sl.ports {
		if sp.name == p.portSpec.name && sp.protocol == p.protocol {
			return sp.number
		}
	}
	return 0
}

// replaceSlice takes the step from one version of a slice to another in all
// pools it has endpoints in; either may be nil. Both belong to this Service.
func (svc *service) replaceSlice(s *State, from, to *slice) {
	for _, p := range svc.ports {
		for _, pool := range p.pools {
			if pool != nil {
				s.moveEndpoints(pool, from, to)
			}
		}
	}
}

// moveEndpoints is replaceSlice for one pool.
func (s *State) moveEndpoints(p *pool, from, to *slice) {
	var fromPort, toPort uint16
	var fromEndpoints, toEndpoints []sliceEndpoint
	if from != nil && from.family == p.family {
		fromPort, fromEndpoints = from.portNumber(p.port), from.endpoints
	}
	if to != nil && to.family == p.family {
		toPort, toEndpoints = to.portNumber(p.port), to.endpoints
	}
	gone := func(e sliceEndpoint) { p.contribute(Backend{e.ip, fromPort}, e.cond, -1) }
	come := func(e sliceEndpoint) { p.contribute(Backend{e.ip, toPort}, e.cond, 1) }
	switch {
	case fromPort == toPort && toPort != 0:
		difference(fromEndpoints, toEndpoints, gone, come)
	default:
		if fromPort != 0 {
			difference(fromEndpoints, nil, gone, come)
		}
		if toPort != 0 {
			p.entries = slices.Grow(p.entries, len(toEndpoints))
			p.touched = slices.Grow(p.touched, len(toEndpoints))
			difference(nil, toEndpoints, gone, come)
		}
	}
	if len(p.touched) > 0 {
		s.dirtyPool(p)
	}
}
