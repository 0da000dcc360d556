// SPDX-License-Identifier: Apache-2.0

package desired

import "slices"

// poolKind is a Scope, plus the flag byIPVS for a pool of virtual servers. A Service port has up to one
// pool of each kind.
type poolKind uint8

const (
	byIPVS  poolKind = 2
	passing          = 2 * poolKind(scopes) // never has backends: its packets are passed on (AnnotationFailover)
	kinds            = 2*scopes + 1
)

func (k poolKind) scope() Scope {
	if k == passing {
		return Local
	}
	return Scope(k &^ byIPVS)
}

// pool records which endpoints of a Service port were reported as backends of one kind.
type pool struct {
	id   PoolID
	kind poolKind
	of   *endpoints

	choice   choice // by which the reported backends were taken
	ifEmpty  Verdict
	reported bool // the pool itself has been reported
	partial  bool // the last report of it was
	balance  Balance
	weighted map[Backend]uint64 // weights that were reported, except DefaultWeight
	missing  missingLocal       // counted in State.noLocal
	ejected  map[Backend]bool   // left out, as they do not answer
	gone     bool               // the Service no longer uses the scope; the next change deletes the pool
}

// choose updates the choice, and reports whether it changed.
func (p *pool) choose(c *PoolChange) (changed bool) {
	former := p.choice
	scope, spec := p.kind.scope(), p.of.port.service.spec
	if p.kind == passing && spec != nil && !spec.policy.externalLocal {
		scope = Cluster
	}
	if p.choice, c.IfEmpty = p.of.tally.choose(scope, spec); p.kind == passing {
		c.IfEmpty = Pass
	}
	if p.gone {
		p.choice.class = classes // so that it is another one if the pool is used again before it is deleted
	}
	return p.choice != former
}

func (p *pool) takes(e *entry) bool {
	return !p.gone && p.kind != passing && e.listed > 0 && p.choice.takes(e.cond) && !p.ejected[e.backend]
}

// changed completes a change that has the added and removed backends. It reports whether
// anything differs from the last report, and marks the pool as reported.
func (p *pool) changed(c *PoolChange, s *State) bool {
	waits := p.of.waits && !p.reported
	if !waits {
		c.Algorithm = s.algorithm(p.of.port.service)
	}
	if c.Algorithm.Hashes() {
		c.TableSize = uint32(s.config.tableSize(p.backends()))
	}
	p.weigh(c, waits || s.slots.over(p.of.port.service), s.config.Loads)
	c.New, c.Gone, c.Partial = !p.reported, p.gone && p.of.complete(), !p.of.complete() || s.moves[p.of] != nil
	differs := c.New || c.Gone || c.Partial != p.partial || len(c.Added)+len(c.Removed)+len(c.Weights) > 0 || c.IfEmpty != p.ifEmpty || c.Balance != p.balance
	p.reported, p.partial, p.ifEmpty, p.balance = true, c.Partial, c.IfEmpty, c.Balance
	neverReported := c.New && c.Gone // added and deleted between two changes
	return differs && !neverReported
}

// describe returns the properties of the pool. Only the sibling can change, of which exists
// says whether it is described too.
func (p *pool) describe(exists func(sibling *pool) bool) PoolChange {
	port := p.of.port
	c := PoolChange{ID: p.id, Service: port.name, Family: p.of.family, Scope: p.kind.scope(), IPVS: p.kind&byIPVS != 0, Sibling: NoPool, Sticky: port.sticky, Shared: port.shared, Range: port.last != 0}
	if p.kind == passing {
		return c
	}
	if other := p.of.pools[p.kind^poolKind(Local)]; other != nil && exists(other) {
		c.Sibling = other.id
	}
	return c
}

func (p *pool) full() PoolChange {
	c := p.describe(func(sibling *pool) bool { return sibling.reported })
	c.New, c.IfEmpty, c.Balance = true, p.ifEmpty, p.balance
	c.Added = make([]Backend, 0, len(p.of.entries))
	for i := range p.of.entries {
		if e := &p.of.entries[i]; e.flags&p.kind.flag() != 0 {
			c.Added = append(c.Added, e.backend)
		}
	}
	for b, w := range p.weighted {
		c.Weights = append(c.Weights, Weight{b, w})
	}
	return c
}

// NoLocalEndpoints counts the Service ports with an internal or external traffic policy of Local that have endpoints,
// but none on this node. Traffic to them is dropped. A port counts once in each family in which it has addresses.
type NoLocalEndpoints struct{ Internal, External [families]int }

// NoLocalEndpoints returns the counts as of the last Change or Full.
func (s *State) NoLocalEndpoints() NoLocalEndpoints { return s.noLocal }

// poolIn returns the pool of a scope that stands for both kinds, or nil.
func (e *endpoints) poolIn(s Scope) *pool {
	for _, kind := range []poolKind{poolKind(s) | byIPVS, poolKind(s)} {
		if p := e.pools[kind]; p != nil && !p.gone {
			return p
		}
	}
	return nil
}

type missingLocal struct{ internal, external bool }

// lacksLocal returns for which traffic the pool lacks local endpoints.
func (p *pool) lacksLocal() (l missingLocal) {
	spec, local := p.of.port.service.spec, p.of.tally.local
	if p != p.of.poolIn(Local) || spec == nil || p.ifEmpty != Drop || local[usable]+local[lastResort] > 0 {
		return l
	}
	l.internal = spec.policy.internalLocal
	l.external = spec.policy.externalLocal && (p.of.port.nodePort != 0 ||
		slices.ContainsFunc(spec.external, func(a externalAddr) bool { return FamilyOf(a.ip) == p.of.family }))
	return l
}

func (s *State) countNoLocal(p *pool, n int) {
	if p.missing.internal {
		s.noLocal.Internal[p.of.family] += n
	}
	if p.missing.external {
		s.noLocal.External[p.of.family] += n
	}
}
