// SPDX-License-Identifier: Apache-2.0

package desired

// NoLocalEndpoints counts the Service ports with an internal or external traffic policy
// of Local that have endpoints, but none on this node. Traffic to them is dropped. A port
// counts once in each family in which it has addresses.
type NoLocalEndpoints struct{ Internal, External [families]int }

// NoLocalEndpoints returns the counts as of the last Change or Full.
func (s *State) NoLocalEndpoints() NoLocalEndpoints { return s.noLocal }

// missingLocal is the kinds of traffic for which a pool lacks local endpoints.
type missingLocal uint8

const (
	missingInternal missingLocal = 1 << iota
	missingExternal
)

// missing computes the kinds of traffic for which the pool lacks local endpoints.
func (p *pool) missing() (l missingLocal) {
	spec := p.port.service.spec
	local := p.tally.local
	if p.gone || p.scope != Local || spec == nil || p.reportedVerdict != Drop || local[usable]+local[lastResort] > 0 {
		return 0
	}
	if spec.policy.internalLocal {
		l |= missingInternal
	}
	if spec.policy.externalLocal && spec.isExternal(p.port.nodePort, p.family) {
		l |= missingExternal
	}
	return l
}

// updateNoLocal updates the counts for one pool.
func (s *State) updateNoLocal(p *pool) {
	was, now := p.counted, p.missing()
	p.counted = now
	step := func(n *int, bit missingLocal) {
		if was&bit != 0 {
			*n--
		}
		if now&bit != 0 {
			*n++
		}
	}
	step(&s.noLocal.Internal[p.family], missingInternal)
	step(&s.noLocal.External[p.family], missingExternal)
}
