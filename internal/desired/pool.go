// SPDX-License-Identifier: Apache-2.0

package desired

// pool holds the endpoints of one Service port in one address family, merged
// over the Service's slices, and knows which of them are told as backends. A
// port has a pool for each scope that its Service's policies use.
type pool struct {
	id     PoolID
	port   *port
	family Family
	scope  Scope

	entries []entry
	index   map[Backend]int32   // where an entry is; only kept for large pools
	shared  map[Backend]*shares // of entries in several slices

	tally  tally
	choice choice // the one that the told backends were taken by

	told        bool // the pool itself has been told
	toldVerdict Verdict
	counted     lack       // in State.noLocal
	gone        bool       // its Service port is no more
	dirty       bool       // it is in State.dirtyPools
	touched     []Backend  // entries to look at again
	flows       *flowWatch // of the pool of its Service port and family that watches over flows
}

// entry is one endpoint.
type entry struct {
	backend Backend
	cond    condition
	flags   entryFlags
	slices  uint16 // how many slices have it; 0 only until the next change
}

type entryFlags uint8

const (
	isTold          entryFlags = 1 << iota // it is one of the backends, as last told
	isTouched                              // it is in pool.touched
	countsAsHairpin                        // it is a user of its address in State.hairpins
	isServing                              // flows to it are good
	hadFlows                               // they were, before
)

// indexFrom is the size from which a pool keeps an index. Below, a walk over
// 24-byte entries is as fast, and ten thousand maps take memory.
const indexFrom = 32

// find is the position of a backend's entry, or -1.
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

// add makes an entry without slices.
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

// remove takes an entry out; the last one takes its place.
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

// contribute records that one more (n = 1) or one fewer (n = -1) slice has an
// endpoint, in a condition.
func (p *pool) contribute(b Backend, c condition, n int) {
	i := p.find(b)
	if i < 0 {
		i = p.add(b)
	}
	e := &p.entries[i]
	was := e.slices
	if was > 0 {
		p.tally.count(e.cond, -1)
	}
	e.slices = uint16(int(was) + n)
	if was == 0 {
		e.cond = c
	} else if was > 1 || e.slices > 1 {
		e.cond = p.share(e, c, n)
	}
	if e.slices > 0 {
		p.tally.count(e.cond, 1)
	}
	if e.flags&isTouched == 0 {
		e.flags |= isTouched
		p.touched = append(p.touched, b)
	}
}

// share takes a slice's part in an endpoint that several slices have, or had just
// now, and returns the condition that follows.
func (p *pool) share(e *entry, c condition, n int) condition {
	s := p.shared[e.backend]
	if s == nil {
		s = &shares{}
		s.count(e.cond, 1)
		if p.shared == nil {
			p.shared = map[Backend]*shares{}
		}
		p.shared[e.backend] = s
	}
	s.count(c, n)
	if e.slices == 1 {
		delete(p.shared, e.backend)
	}
	return s.merged(e.slices)
}

// takes says whether an entry is a backend under the pool's choice.
func (p *pool) takes(e *entry) bool { return !p.gone && e.slices > 0 && p.choice.takes(e.cond) }

// change brings what is told up to date and returns the difference.
func (p *pool) change(hairpins *addresses) (PoolChange, bool) {
	c := p.describe()
	c.New, c.Gone = !p.told, p.gone
	choice, ifEmpty := p.tally.choose(p.scope)
	if choice != p.choice || p.gone {
		p.choice = choice
		for i := len(p.entries) - 1; i >= 0; i-- { // backwards, as tell may move the last one here
			p.tell(i, &c, hairpins)
		}
	} else {
		for _, b := range p.touched {
			if i := p.find(b); i >= 0 {
				p.tell(i, &c, hairpins)
			}
		}
	}
	p.touched = nil
	differs := c.New || c.Gone || len(c.Added)+len(c.Removed) > 0 || ifEmpty != p.toldVerdict
	p.told, p.toldVerdict, c.IfEmpty = true, ifEmpty, ifEmpty
	unseen := c.New && c.Gone // it came and went between two changes
	return c, differs && !unseen
}

// describe is what never changes about the pool.
func (p *pool) describe() PoolChange {
	return PoolChange{ID: p.id, Service: p.port.name, Family: p.family, Scope: p.scope, Sticky: p.port.sticky}
}

// tell brings what is told of one entry up to date.
func (p *pool) tell(i int, c *PoolChange, hairpins *addresses) {
	e := &p.entries[i]
	e.flags &^= isTouched
	now := p.takes(e)
	switch {
	case now && e.flags&isTold == 0:
		c.Added = append(c.Added, e.backend)
	case !now && e.flags&isTold != 0:
		c.Removed = append(c.Removed, e.backend)
	}
	e.flags = e.flags.with(isTold, now)
	hairpin := now && e.cond&maybeLocal != 0
	switch counts := e.flags&countsAsHairpin != 0; {
	case hairpin && !counts:
		hairpins.use(e.backend.ip, 1)
	case !hairpin && counts:
		hairpins.use(e.backend.ip, -1)
	}
	e.flags = e.flags.with(countsAsHairpin, hairpin)
	if p.flows != nil {
		p.watchFlows(e)
	}
	if e.slices == 0 {
		p.remove(i)
	}
}

func (f entryFlags) with(bit entryFlags, on bool) entryFlags {
	if on {
		return f | bit
	}
	return f &^ bit
}

// full describes the pool as told.
func (p *pool) full() PoolChange {
	c := p.describe()
	c.New, c.IfEmpty = true, p.toldVerdict
	c.Added = make([]Backend, 0, len(p.entries))
	for i := range p.entries {
		if p.entries[i].flags&isTold != 0 {
			c.Added = append(c.Added, p.entries[i].backend)
		}
	}
	return c
}
