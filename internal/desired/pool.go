// SPDX-License-Identifier: Apache-2.0

package desired

import "net/netip"

// pool holds the endpoints of one Service port in one address family, merged over the
// Service's slices, and records which of them were reported as backends. A port has a
// pool for each scope that the Service's policies use.
type pool struct {
	id     PoolID
	port   *port
	family Family
	scope  Scope

	entries []entry
	index   map[Backend]int32            // positions of entries; only kept for large pools
	shared  map[Backend]*conditionCounts // of entries that are listed several times

	tally  tally
	choice choice // the choice by which the reported backends were taken

	reported        bool // the pool itself has been reported
	reportedVerdict Verdict
	counted         missingLocal // in State.noLocal
	gone            bool         // its Service port no longer needs it
	dirty           bool         // it is in State.dirtyPools
	touched         []Backend    // entries that changed since the last report
	flows           *flowWatch   // nil unless this pool tracks the flows of its Service port and family
}

// entry is one endpoint.
type entry struct {
	backend Backend
	cond    condition
	flags   entryFlags
	listed  uint16 // how often slices list it; entries with 0 are removed by the next change
}

type entryFlags uint8

const (
	isReported      entryFlags = 1 << iota // was a backend at the last report
	isTouched                              // is in pool.touched
	countsAsHairpin                        // counts as a user of its address in State.hairpins
	isServing                              // serves flows, by the tracking of flows
)

// indexFrom is the size from which a pool keeps an index. In smaller pools, a linear
// search over the 24-byte entries is as fast and saves the memory of the map.
const indexFrom = 32

// find returns the position of a backend's entry, or -1.
func (p *pool) find(b Backend) int {
	if p.index != nil {
		if i, ok := p.index[b]; ok {
			return int(i)
		}
		return -1
	}
	for i := range p.entries {
		if p.entries[i].backend == b {
			return i
		}
	}
	return -1
}

// add appends an entry that no slice lists yet.
func (p *pool) add(b Backend) int {
	i := len(p.entries)
	p.entries = append(p.entries, entry{backend: b})
	switch {
	case p.index != nil:
		p.index[b] = int32(i)
	case len(p.entries) == indexFrom:
		p.index = make(map[Backend]int32, 2*indexFrom)
		for i := range p.entries {
			p.index[p.entries[i].backend] = int32(i)
		}
	}
	return i
}

// remove deletes an entry. The last entry moves to its position.
func (p *pool) remove(i int) {
	last := len(p.entries) - 1
	if p.index != nil {
		delete(p.index, p.entries[i].backend)
		if i != last {
			p.index[p.entries[last].backend] = int32(i)
		}
	}
	p.entries[i] = p.entries[last]
	p.entries = p.entries[:last]
	if p.index != nil && last < indexFrom/2 {
		p.index = nil
	}
}

// contribute adds (n = 1) or removes (n = -1) an endpoint that a slice lists, with its
// condition there. The condition of the entry depends on how often slices list the
// endpoint, before and after:
//
//	before   after   condition
//	0        1       that of the slice
//	1        0       unchanged; the next change removes the entry
//	1        2       merged, and counted in shared from here on
//	2 ...    2 ...   merged
//	2        1       that of the remaining slice; no longer counted in shared
func (p *pool) contribute(b Backend, c condition, n int) {
	i := p.find(b)
	if i < 0 {
		i = p.add(b)
	}
	e := &p.entries[i]
	before, after := e.listed, uint16(int(e.listed)+n)
	if before > 0 {
		p.tally.count(e.cond, -1)
	}
	e.listed = after
	switch {
	case before == 0:
		e.cond = c
	case before > 1 || after > 1:
		e.cond = p.merge(e, c, n)
	}
	if after > 0 {
		p.tally.count(e.cond, 1)
	}
	if e.flags&isTouched == 0 {
		e.flags |= isTouched
		p.touched = append(p.touched, b)
	}
}

// merge adds or removes one condition of an endpoint that slices list several times, or did
// before, and returns the merged condition.
func (p *pool) merge(e *entry, c condition, n int) condition {
	counts := p.shared[e.backend]
	if counts == nil {
		counts = &conditionCounts{}
		counts.add(e.cond, 1)
		if p.shared == nil {
			p.shared = map[Backend]*conditionCounts{}
		}
		p.shared[e.backend] = counts
	}
	counts.add(c, n)
	if e.listed == 1 {
		delete(p.shared, e.backend)
	}
	return counts.merged(e.listed)
}

// takes reports whether an entry is a backend under the pool's choice.
func (p *pool) takes(e *entry) bool { return !p.gone && e.listed > 0 && p.choice.takes(e.cond) }

// change returns the difference from the last report and marks it as reported.
func (p *pool) change(hairpins *counted[netip.Addr]) (PoolChange, bool) {
	c := p.describe()
	c.New, c.Gone = !p.reported, p.gone
	choice, ifEmpty := p.tally.choose(p.scope)
	if choice != p.choice || p.gone {
		p.choice = choice
		for i := len(p.entries) - 1; i >= 0; i-- { // backwards, because report may move the last entry to i
			p.report(i, &c, hairpins)
		}
	} else {
		for _, b := range p.touched {
			if i := p.find(b); i >= 0 {
				p.report(i, &c, hairpins)
			}
		}
	}
	p.touched = nil
	differs := c.New || c.Gone || len(c.Added)+len(c.Removed) > 0 || ifEmpty != p.reportedVerdict
	p.reported, p.reportedVerdict, c.IfEmpty = true, ifEmpty, ifEmpty
	neverReported := c.New && c.Gone // added and deleted between two changes
	return c, differs && !neverReported
}

// describe returns the properties of the pool that never change.
func (p *pool) describe() PoolChange {
	return PoolChange{ID: p.id, Service: p.port.name, Family: p.family, Scope: p.scope, Sticky: p.port.sticky}
}

// report adds the difference in one entry to c and marks it as reported.
func (p *pool) report(i int, c *PoolChange, hairpins *counted[netip.Addr]) {
	e := &p.entries[i]
	e.flags &^= isTouched
	now := p.takes(e)
	switch {
	case now && e.flags&isReported == 0:
		c.Added = append(c.Added, e.backend)
	case !now && e.flags&isReported != 0:
		c.Removed = append(c.Removed, e.backend)
	}
	e.flags = e.flags.with(isReported, now)
	hairpin := now && e.cond&maybeLocal != 0
	switch counts := e.flags&countsAsHairpin != 0; {
	case hairpin && !counts:
		hairpins.use(e.backend.Addr(), 1)
	case !hairpin && counts:
		hairpins.use(e.backend.Addr(), -1)
	}
	e.flags = e.flags.with(countsAsHairpin, hairpin)
	if p.flows != nil {
		p.watchFlows(e)
	}
	if e.listed == 0 {
		p.remove(i)
	}
}

func (f entryFlags) with(bit entryFlags, on bool) entryFlags {
	if on {
		return f | bit
	}
	return f &^ bit
}

// full describes the pool as of the last report.
func (p *pool) full() PoolChange {
	c := p.describe()
	c.New, c.IfEmpty = true, p.reportedVerdict
	c.Added = make([]Backend, 0, len(p.entries))
	for i := range p.entries {
		if p.entries[i].flags&isReported != 0 {
			c.Added = append(c.Added, p.entries[i].backend)
		}
	}
	return c
}

// conditionCounts counts, for an endpoint that slices list several times, the entries in
// which each bit of its condition is set. This happens while a controller moves an endpoint
// between slices, and in slices that are written by hand.
type conditionCounts [conditionBits]uint16

func (s *conditionCounts) add(c condition, n int) {
	for i := range s {
		if c&(1<<i) != 0 {
			s[i] = uint16(int(s[i]) + n)
		}
	}
}

// merged returns the condition over a number of entries: every bit that any entry has, but
// terminating only if all have it.
func (s *conditionCounts) merged(entries uint16) (c condition) {
	for i, n := range s {
		if bit := condition(1) << i; n > 0 && (bit != terminating || n == entries) {
			c |= bit
		}
	}
	return c
}
