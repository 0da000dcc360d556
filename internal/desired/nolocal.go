// SPDX-License-Identifier: Apache-2.0

package desired

// NoLocalEndpoints counts the Service ports with an internal or external traffic policy
// of Local that have endpoints, but none on this node. Traffic to them is dropped. A port
// counts once in each family in which it has addresses.
type NoLocalEndpoints struct{ Internal, External [families]int }

// NoLocalEndpoints returns the counts as of the last Change or Full.
func (s *State) NoLocalEndpoints() NoLocalEndpoints { return s.noLocal }

// missingLocal says for which traffic a pool lacks local endpoints.
type missingLocal struct{ internal, external bool }

// missing computes for which traffic the pool lacks local endpoints.
func (p *pool) missing() (l missingLocal) {
	spec := p.port.service.spec
	local := p.tally.local
	if p.gone || p.scope != Local || spec == nil || p.reportedVerdict != Drop || local[usable]+local[lastResort] > 0 {
		return l
	}
	l.internal = spec.policy.internalLocal
	l.external = spec.policy.externalLocal && spec.isExternal(p.port.nodePort, p.family)
	return l
}

// updateNoLocal updates the counts for one pool.
func (s *State) updateNoLocal(p *pool) {
	s.countNoLocal(p, -1)
	p.counted = p.missing()
	s.countNoLocal(p, 1)
}

func (s *State) countNoLocal(p *pool, n int) {
	if p.counted.internal {
		s.noLocal.Internal[p.family] += n
	}
	if p.counted.external {
		s.noLocal.External[p.family] += n
	}
}
