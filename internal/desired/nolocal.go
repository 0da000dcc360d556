// SPDX-License-Identifier: Apache-2.0

package desired

// NoLocalEndpoints counts the Service ports with an internal or external traffic policy
// of Local that have endpoints, but none on this node. Traffic to them is dropped. A port
// counts once in each family in which it has addresses.
type NoLocalEndpoints struct{ Internal, External [families]int }

// NoLocalEndpoints returns the counts as of the last Change or Full.
func (s *State) NoLocalEndpoints() NoLocalEndpoints { return s.noLocal }

type missingLocal struct{ internal, external bool }

// lacksLocal returns for which traffic the pool lacks local endpoints.
func (p *pool) lacksLocal() (l missingLocal) {
	spec, local := p.of.port.service.spec, p.of.tally.local
	if p.gone || p.scope != Local || spec == nil || p.ifEmpty != Drop || local[usable]+local[lastResort] > 0 {
		return l
	}
	l.internal = spec.policy.internalLocal
	l.external = spec.policy.externalLocal && spec.isExternal(p.of.port.nodePort, p.of.family)
	return l
}

func (s *State) updateNoLocal(p *pool) {
	s.countNoLocal(p, -1)
	p.missing = p.lacksLocal()
	s.countNoLocal(p, 1)
}

func (s *State) countNoLocal(p *pool, n int) {
	if p.missing.internal {
		s.noLocal.Internal[p.of.family] += n
	}
	if p.missing.external {
		s.noLocal.External[p.of.family] += n
	}
}
