// SPDX-License-Identifier: Apache-2.0

package desired

import corev1 "k8s.io/api/core/v1"

// AnnotationFailover of a Service with the value "passthrough" passes packets to its external IPs and
// load balancer IPs on by the node's routes while no endpoint would serve them on this node. So several
// nodes or clusters can announce one address. NodePorts are addresses of the node: nothing is passed on.
const AnnotationFailover = "slipstream.io/external-failover"

func (s *State) failover(out *serviceSpec, in *corev1.Service) {
	value := in.Annotations[AnnotationFailover]
	if out.failsOver = value == "passthrough"; value != "" && !out.failsOver {
		s.serviceProblem(in, "metadata.annotations["+AnnotationFailover+"]", "not passthrough: "+value)
	}
}

// passes reports whether packets to addresses of a kind are passed on if no endpoint serves them.
func (spec *serviceSpec) passes(k AddressKind) bool {
	return spec.failsOver && (k == ExternalIP || k == LoadBalancerIP)
}

// failsOver has the frontends of endpoints that have changed decided again.
func (s *State) failsOver(e *endpoints) {
	if spec := e.port.service.spec; spec != nil && spec.failsOver && !e.gone {
		s.dirtyClaimsOf(e)
	}
}

// passedFlows appends the flows that were passed on to a frontend that the node serves now. Two nodes could pass
// their packets to each other.
func (s *State) passedFlows(all []StaleFlows, c *FrontendChange) []StaleFlows {
	if c.Old == nil || !c.Old.Passes || c.New == nil || c.New.Passes || c.New.Protocol == TCP {
		return all
	}
	serving := s.pools[c.New.Pool].of.servingBackends()
	return append(all, StaleFlows{Protocol: c.New.Protocol, Frontends: []FrontendKey{c.New.FrontendKey}, Backends: serving, Only: true})
}
