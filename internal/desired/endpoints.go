// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"cmp"
	"slices"
)

// endpoints are the endpoints of one Service port in one address family, merged over the
// Service's slices. Its pools choose backends among them.
type endpoints struct {
	port   *port
	family Family
	pools  [kinds]*pool // by poolKind; nil if no frontend needs it

	entries []entry
	index   map[Backend]int32     // positions of entries; only kept for many
	shared  map[Backend]*listings // of entries that slices list several times
	tally   tally
	touched []Backend  // entries that changed since the last report; none before the first, which has all
	rest    *rest      // of touched, that the last Change left for the next
	flows   *flowWatch // nil for TCP
	counted int        // of service.slots
	written int        // counted, at the last report that was complete, or more since
	told    bool       // there was a report
	gone    bool       // the Service port no longer has the family
	dirty   bool       // they are in State.dirtyEndpoints
	waits   bool       // the last Change left them, or their slots, for the next
	late    bool       // the last Change left some for the next, and it was not the first of their namespace's

	warming    map[Backend]warming // entries that became ready a short time ago
	unanswered []Backend           // that pools have left out since the last report, as they do not answer

	weighted bool // the scheduler of the dataplane has to look at weights
}

type entry struct {
	backend Backend
	cond    condition
	flags   entryFlags
	weight  uint8
	listed  uint32 // how often slices list it; entries with 0 are removed by the next change
}

type entryFlags uint16

const (
	isTouched       entryFlags = 1 << iota // is in endpoints.touched
	countsAsHairpin                        // counts as a user of its address in HairpinIPs
	isServing                              // serves flows, by the tracking of flows
	inFirst                                // was a backend of the pool of the first kind at the last report; then the other kinds
	inPools         = inFirst<<kinds - inFirst
	wasUsable       = inFirst << kinds // took new connections at the last report
)

func (k poolKind) flag() entryFlags { return inFirst << k }

// set sets or clears a flag, and reports whether that changed it.
func (f *entryFlags) set(flag entryFlags, on bool) (changed bool) {
	was := *f
	if *f |= flag; !on {
		*f &^= flag
	}
	return *f != was
}

// indexFrom is the number of entries from which there is an index. For fewer, a linear
// search over the 28-byte entries is as fast and saves the memory of the map.
const indexFrom = 32

// find returns the position of a backend's entry, or -1.
func (e *endpoints) find(b Backend) int {
	if e.index != nil {
		if i, ok := e.index[b]; ok {
			return int(i)
		}
		return -1
	}
	for i := range e.entries {
		if e.entries[i].backend == b {
			return i
		}
	}
	return -1
}

// add appends an entry that no slice lists yet.
func (e *endpoints) add(b Backend) int {
	i := len(e.entries)
	e.entries = append(e.entries, entry{backend: b})
	switch {
	case e.index != nil:
		e.index[b] = int32(i)
	case len(e.entries) == indexFrom:
		e.index = make(map[Backend]int32, 2*indexFrom)
		for i := range e.entries {
			e.index[e.entries[i].backend] = int32(i)
		}
	}
	return i
}

// remove deletes an entry. The last entry moves to its position.
func (e *endpoints) remove(i int) {
	last := len(e.entries) - 1
	if e.index != nil {
		delete(e.index, e.entries[i].backend)
		if i != last {
			e.index[e.entries[last].backend] = int32(i)
		}
	}
	e.entries[i] = e.entries[last]
	e.entries = e.entries[:last]
	if e.index != nil && last < indexFrom/2 {
		e.index = nil
	}
}

// replaceSlice replaces one version of a slice by another in all endpoints and the health
// check of the Service, after svc.slices has been updated. Either version may be nil.
func (svc *service) replaceSlice(s *State, from, to *slice) {
	for _, p := range svc.ports {
		for _, e := range p.endpoints {
			if e != nil {
				s.move(e, from, to)
			}
		}
	}
	s.setHealth(svc)
}

// move is a slice that has another version.
type move struct{ from, to *slice }

// move is replaceSlice for one family of a port. It waits for a later change if many endpoints of the namespace have moved
// since the last one, but not for new endpoints, which frontends may already have.
func (s *State) move(e *endpoints, from, to *slice) {
	of := e.port.name.Namespace
	has := func(sl *slice) bool { return sl != nil && sl.family == e.family }
	switch i := slices.IndexFunc(s.moves[e], func(m move) bool { return from != nil && m.to == from }); {
	case !has(from) && !has(to):
	case s.moves[e] == nil && (!e.told || s.moved[of] < s.mostChange()):
		s.moved[of] += s.moveEndpoints(e, from, to)
	case i >= 0:
		s.moves[e][i].to = to
	default:
		s.moves[e] = append(s.moves[e], move{from, to})
		s.markDirty(e)
	}
}

// moveWaiting moves endpoints that wait for it, until so many of their namespace have moved.
func (s *State) moveWaiting(e *endpoints, most int) {
	of, moves := e.port.name.Namespace, s.moves[e]
	for ; len(moves) > 0 && s.moved[of] < most; moves = moves[1:] {
		s.moved[of] += s.moveEndpoints(e, moves[0].from, moves[0].to)
	}
	if s.moves[e] = moves; len(moves) == 0 {
		delete(s.moves, e)
	}
}

// moveEndpoints is replaceSlice for one family of a port. It returns the number of endpoints that differ.
func (s *State) moveEndpoints(e *endpoints, from, to *slice) int {
	fromAll, fromEndpoints := from.endpointsFor(e)
	toAll, toEndpoints := to.endpointsFor(e)
	if fromAll == toAll {
		fromEndpoints, toEndpoints = difference(fromEndpoints, toEndpoints)
	} else {
		e.entries = slices.Grow(e.entries, len(toEndpoints))
		if e.told {
			e.touched = slices.Grow(e.touched, len(toEndpoints))
		}
	}
	for _, x := range fromEndpoints {
		e.list(Backend{x.ip, fromAll.port}, x.cond, fromAll.weight, -1)
	}
	for _, x := range toEndpoints {
		e.list(Backend{x.ip, toAll.port}, x.cond, toAll.weight, 1)
	}
	if len(e.touched) > 0 || !e.told {
		s.markDirty(e)
	}
	return len(fromEndpoints) + len(toEndpoints)
}

// ofSlice is what all endpoints of a slice have in common for a Service port.
type ofSlice struct {
	port   uint16
	weight uint8
}

// endpointsFor returns the slice's endpoints for a Service port and family. A Service port and
// a slice port match by name and protocol.
func (sl *slice) endpointsFor(e *endpoints) (common ofSlice, all []sliceEndpoint) {
	if sl == nil || sl.family != e.family {
		return common, nil
	}
	if e.port.last != 0 {
		return ofSlice{0, sl.weight}, sl.endpoints // the ports of connections
	}
	i, found := slices.BinarySearchFunc(sl.ports, slicePort{name: e.port.portID.name, protocol: e.port.protocol}, slicePort.compare)
	if !found {
		return common, nil
	}
	return ofSlice{sl.ports[i].number, sl.weight}, sl.endpoints
}

// list adds (n = 1) or removes (n = -1) an endpoint that a slice lists, with its condition and weight
// there. If slices list it several times, its own follow from all of them.
func (e *endpoints) list(b Backend, c condition, weight uint8, n int) {
	i := e.find(b)
	if i < 0 {
		i = e.add(b)
	}
	en := &e.entries[i]
	e.count(en, -1)
	if weight == 0 { // it takes no new connections, not even as the last resort; its flows go on
		c &^= ready | terminating
	}
	all := e.shared[b]
	switch {
	case en.listed == 0:
		en.cond, en.weight = c, weight
	case all == nil && n > 0:
		all = &listings{}
		all.count(en.cond, en.weight, 1)
		if e.shared == nil {
			e.shared = map[Backend]*listings{}
		}
		e.shared[b] = all
	}
	en.listed += uint32(n)
	if all != nil {
		all.count(c, weight, n)
		en.cond, en.weight = all.merged(int(en.listed))
		if en.listed == 1 {
			delete(e.shared, b)
		}
	}
	e.count(en, 1)
	if en.flags.set(isTouched, true) && e.told {
		e.touched = append(e.touched, b)
	}
}

// listings counts how slices list an endpoint that several of them list. Such endpoints exist while a
// controller moves endpoints between slices, and in slices that are written by hand.
type listings struct {
	bits    [conditionBits]int32
	weights []listedWeight
}

type listedWeight struct {
	weight uint8
	n      int32
}

func (l *listings) count(c condition, weight uint8, n int) {
	for bit := range l.bits {
		l.bits[bit] += int32(n) * int32(c>>bit&1)
	}
	i := slices.IndexFunc(l.weights, func(w listedWeight) bool { return w.weight == weight })
	if i < 0 {
		i = len(l.weights)
		l.weights = append(l.weights, listedWeight{weight: weight})
	}
	if l.weights[i].n += int32(n); l.weights[i].n == 0 {
		l.weights = slices.Delete(l.weights, i, i+1)
	}
}

// merged returns every bit that one of a number of conditions has, but terminating only if all have it,
// and the largest weight.
func (l *listings) merged(number int) (c condition, weight uint8) {
	for bit, n := range l.bits {
		if n > 0 && (1<<bit != terminating || int(n) == number) {
			c |= 1 << bit
		}
	}
	for _, w := range l.weights {
		weight = max(weight, w.weight)
	}
	return c, weight
}

// count adds n to the tally for an entry that slices list.
func (e *endpoints) count(en *entry, n int32) {
	if en.listed > 0 {
		e.tally.count(en.cond, n)
		if en.weight != DefaultWeight {
			e.tally.weighted += n
		}
	}
}

// change adds the differences of the pools from the last report to c, and marks them as reported. With more than a
// number of backends and slots, half of it is added and half removed, and the rest stays touched. It returns the
// number. The slots of those that are removed have to change at once, others as the dataplane finds time.
func (e *endpoints) change(c *Update, s *State, most int) (n int) {
	var changes [kinds]PoolChange
	first := !e.told
	chosenAgain := first
	e.told = true
	for kind, p := range e.pools {
		if p != nil {
			changes[kind] = p.describe(func(sibling *pool) bool { return !sibling.gone })
			if !p.reported && p.kind.scope() == Cluster {
				changes[kind].Added = make([]Backend, 0, min(len(e.entries), most))
			}
			chosenAgain = p.choose(&changes[kind]) || chosenAgain
			chosenAgain = p.eject(s) || chosenAgain
		}
	}
	slots := max(e.counted, e.written)
	each := 1 + slots/max(len(e.entries), 1) // an entry, and its slots
	emptied := each > 8 && !s.config.IPVS && len(e.entries) <= 2*s.mostChange() &&
		e.tally.all[usable]+e.tally.all[lastResort] == 0 // then no slot has to get another backend
	switch {
	case emptied || chosenAgain && len(e.entries) <= most/2/each:
		e.touched, e.rest = nil, nil
		for i := len(e.entries) - 1; i >= 0; i-- { // backwards, because report may move the last entry to i
			n += e.report(i, &changes, s)
		}
		if first { // the order of a full description, or a repair would write all anew
			for kind := range changes {
				slices.Reverse(changes[kind].Added)
			}
		}
	default:
		for i := 0; chosenAgain && i < len(e.entries); i++ {
			if e.entries[i].flags.set(isTouched, true) || first {
				e.touched = append(e.touched, e.entries[i].backend)
			}
		}
		n = e.reportTouched(most/2, each, &changes, s)
	}
	for kind, p := range e.pools {
		if p != nil && p.changed(&changes[kind], s) {
			c.Pools = append(c.Pools, changes[kind])
		}
	}
	if !e.waits {
		n += slots / tableCost
		if e.written = slots; e.complete() {
			e.written = e.counted
		}
	}
	return n
}

// tableCost is how many slots take as long to choose as one to write.
const tableCost = 16

// rest are entries that pools gain and lose, as far as they do still.
type rest [2][]Backend

// reportTouched reports entries until pools gain a number, or lose as many, each with its slots.
func (e *endpoints) reportTouched(most, each int, changes *[kinds]PoolChange, s *State) int {
	r, counts, costs := cmp.Or(e.rest, &rest{}), [2]int{}, [2]int{1, each}
	for kind := range r {
		for len(r[kind]) > 0 && counts[kind] < most {
			if i := e.find(r[kind][0]); i >= 0 {
				counts[kind] += costs[kind] * e.report(i, changes, s)
			}
			r[kind] = r[kind][1:]
		}
	}
	for ; len(e.touched) > 0 && min(counts[0], counts[1]) < most; e.touched = e.touched[1:] {
		i := e.find(e.touched[0])
		if i < 0 {
			continue
		}
		kind := 0
		for k, p := range e.pools {
			if p != nil && e.entries[i].flags&poolKind(k).flag() != 0 && !p.takes(&e.entries[i]) {
				kind = 1
			}
		}
		if counts[kind] >= most {
			r[kind] = append(r[kind], e.touched[0])
		} else {
			counts[kind] += costs[kind] * e.report(i, changes, s)
		}
	}
	if len(e.touched) == 0 {
		e.touched = nil
	}
	if e.rest = r; len(r[0])+len(r[1]) == 0 {
		e.rest = nil
	}
	return counts[0] + counts[1]
}

// complete reports whether all entries have been reported as they are.
func (e *endpoints) complete() bool { return len(e.touched) == 0 && e.rest == nil }

// report adds the difference in one entry to changes, marks it as reported, and returns in how many pools it differs.
func (e *endpoints) report(i int, changes *[kinds]PoolChange, s *State) (n int) {
	en := &e.entries[i]
	former := en.flags
	en.flags &^= isTouched
	for kind, p := range e.pools {
		if p == nil {
			continue
		}
		takes, c := p.takes(en), &changes[kind]
		switch {
		case !en.flags.set(poolKind(kind).flag(), takes):
			continue
		case takes:
			c.Added = append(c.Added, en.backend)
		default:
			c.Removed = append(c.Removed, en.backend)
		}
		n++
	}
	hairpin := en.flags&inPools != 0 && en.cond&maybeLocal != 0
	if en.flags.set(countsAsHairpin, hairpin) {
		users := -1
		if hairpin {
			users = 1
		}
		s.sets[HairpinIPs].use(Address(en.backend.Addr()), users)
	}
	if e.flows != nil {
		e.watchFlows(en, former)
	}
	e.warm(en, s.now)
	if en.listed == 0 {
		e.remove(i)
	}
	return n
}
