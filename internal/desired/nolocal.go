// SPDX-License-Identifier: Apache-2.0

package desired

// NoLocalEndpoints counts Service ports that have endpoints, but none on this node,
// while the internal or external traffic policy is Local: what comes for them is
// dropped here. A port counts in each family in which it has addresses.
type NoLocalEndpoints struct{ Internal, External [families]int }

// NoLocalEndpoints are the counts as of the last Change or Full.
func (s *State) NoLocalEndpoints() NoLocalEndpoints { return s.noLocal }

// lack says for which traffic a pool lacks local endpoints.
type lack uint8

const (
	lacksInternal lack = 1 << iota
	lacksExternal
)

// lacks finds out what a pool lacks now.
func (p *pool) lacks() (l lack) {
	spec := p.port.service.spec
	local := p.tally.local
	if p.gone || p.scope != Local || spec == nil || p.toldVerdict != Drop || local[usable]+local[lastResort] > 0 {
		return 0
	}
	if spec.policy.internalLocal {
		l |= lacksInternal
	}
	if spec.policy.externalLocal && spec.isExternal(p.port.nodePort, p.family) {
		l |= lacksExternal
	}
	return l
}

// countLack brings the counts up to date for one pool.
func (s *State) countLack(p *pool) {
	was, now := p.counted, p.lacks()
	p.counted = now
	step := func(n *int, bit lack) {
		if was&bit != 0 {
			*n--
		}
		if now&bit != 0 {
			*n++
		}
	}
	step(&s.noLocal.Internal[p.family], lacksInternal)
	step(&s.noLocal.External[p.family], lacksExternal)
}
