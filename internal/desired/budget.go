// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
)

// MaxSlots is how many slots the annotations of the Services of a namespace may need, in all ports,
// families and scopes together, and how many one Service may need for whatever reason. A Service
// beyond has none because of them: its backends are chosen at random, and all are equally likely. A
// slot takes about 100 bytes of kernel memory, and 200 of the proxy's while it is written.
//
// MaxElements is how many frontends, source ranges of frontends and backends the Services of a namespace may have, of
// which an object of a megabyte could make millions. The first 256 of each Service do not count, so that many
// ordinary ones have room. A Service beyond has none. One takes about 70 bytes of the kernel's memory, and 170 of the
// proxy's. As they can all differ in one change, it also bounds how long others wait for one.
//
// MaxRanges is how many frontends with a range of ports the Services of a namespace may have, each part of it
// counted. The kernel copies all of a node with each change of one. A Service beyond has no ranges.
//
// All nodes decide alike: the numbers follow from Services and EndpointSlices.
const (
	MaxSlots    = 1 << 19
	MaxElements = 1 << 16
	MaxRanges   = 1 << 10

	// All namespaces together may have so many times what one may have.
	namespacesSlots, namespacesElements, namespacesRanges = 8, 32, 8
)

// budget limits what Services need of one thing. While those of a namespace need more than it may
// have, those that need the most get nothing. While all need more than there is, namespaces may have
// less, half as often as is necessary, so that those that have the most lose first.
type budget struct {
	each    int // that a namespace may have
	free    int // that each Service may have besides
	all     int // that all namespaces may have
	level   int // that a namespace may have now
	total   int // that namespaces have, if each may have its own
	tenants map[string]*tenant
}

// tenant is a namespace.
type tenant struct {
	needs  map[*service]int // beyond budget.free, without zeros
	sorted []need           // the largest first; nil until they are more than the namespace may have
	cut    int              // those before get nothing, as the others fit then
	kept   int              // sum of the others
	within int              // of those that fit, if it may have budget.each
}

// need is what a Service needs.
type need struct {
	n   int
	svc *service
}

func (a need) compare(b need) int {
	return cmp.Or(cmp.Compare(b.n, a.n), cmp.Compare(a.svc.name.Name, b.svc.name.Name))
}

func newBudget(each, free, namespaces int) budget {
	return budget{each, free, namespaces * each, each, 0, map[string]*tenant{}}
}

func (b *budget) over(svc *service) bool { return b.tenants[svc.name.Namespace].over(svc) }

func (t *tenant) over(svc *service) bool {
	if t == nil || t.cut == 0 {
		return false
	}
	n := t.needs[svc]
	return n > 0 && t.place(need{n, svc}) < t.cut
}

// place returns where a need is, or belongs.
func (t *tenant) place(x need) int {
	i, _ := slices.BinarySearchFunc(t.sorted, x, need.compare)
	return i
}

// replace sets what a Service needs, without a new cut.
func (t *tenant) replace(svc *service, former, n int) {
	if t.sorted == nil {
		t.kept += n - former
	} else {
		if former > 0 {
			i := t.place(need{former, svc})
			if t.sorted = slices.Delete(t.sorted, i, i+1); i < t.cut {
				t.cut--
			} else {
				t.kept -= former
			}
		}
		if n > 0 {
			i := t.place(need{n, svc})
			if t.sorted = slices.Insert(t.sorted, i, need{n, svc}); i < t.cut {
				t.cut++
			} else {
				t.kept += n
			}
		}
	}
	if t.needs[svc] = n; n == 0 {
		delete(t.needs, svc)
	}
}

// set says what a Service needs. It returns the Services of which it then differs whether they get it.
// Others cost nothing.
func (b *budget) set(svc *service, n int) (differ []*service) {
	n = max(0, n-b.free)
	name := svc.name.Namespace
	t := b.tenants[name]
	switch {
	case t == nil && n == 0 || t != nil && t.needs[svc] == n:
		return nil
	case t == nil:
		t = &tenant{needs: map[*service]int{}}
		b.tenants[name] = t
	}
	former, was := t.needs[svc], t.over(svc)
	t.replace(svc, former, n)
	b.total -= t.within
	t.within = t.fit(b.each)
	b.total += t.within
	if len(t.needs) == 0 {
		delete(b.tenants, name)
	}
	level, all := b.each, []*tenant{t}
	for have := b.total; have > b.all; level /= 2 {
		have = 0
		for _, t := range b.tenants {
			have += t.fit(level / 2)
		}
	}
	if level != b.level {
		b.level, all = level, slices.Collect(maps.Values(b.tenants))
	}
	for _, t := range all {
		from := t.cut
		t.cut, t.kept = t.split(level)
		for _, x := range t.sorted[min(from, t.cut):max(from, t.cut)] {
			if x.svc != svc {
				differ = append(differ, x.svc)
			}
		}
	}
	if t.over(svc) != was {
		differ = append(differ, svc)
	}
	return differ
}

// split returns the cut so that those after it, and as many as possible, fit if all may have a number, and their sum.
func (t *tenant) split(most int) (cut, kept int) {
	if t.kept > most && t.sorted == nil {
		for svc, n := range t.needs {
			t.sorted = append(t.sorted, need{n, svc})
		}
		slices.SortFunc(t.sorted, need.compare)
	}
	cut, kept = t.cut, t.kept
	for ; kept > most; cut++ {
		kept -= t.sorted[cut].n
	}
	for ; cut > 0 && kept+t.sorted[cut-1].n <= most; cut-- {
		kept += t.sorted[cut-1].n
	}
	return cut, kept
}

// fit returns what those need that fit if all may have a number.
func (t *tenant) fit(most int) int {
	_, kept := t.split(most)
	return kept
}

// elements returns how many frontends, source ranges of these, and backends a Service would have at most, and how many
// of the frontends are ranges, by parts.
func (svc *service) elements() (n, ranges int) {
	spec := svc.wanted
	if spec == nil {
		return 0, 0
	}
	n = len(spec.ports) * (len(spec.clusterIPs) + len(spec.external) + 1)
	for _, a := range spec.external {
		if a.kind == LoadBalancerIP { // each of its frontends has all source ranges
			n += len(spec.ports) * len(spec.ranges[FamilyOf(a.ip)])
		}
	}
	of := 1 // elements that a backend takes
	if spec.affinity > 0 {
		of *= 2
	}
	if spec.policy.externalLocal { // all may be local
		of *= 2
	}
	for f, backends := range svc.backends {
		if spec.has(Family(f)) {
			n += of * backends
		}
	}
	ranges = spec.portRanges * (len(spec.clusterIPs) + len(spec.external))
	for _, p := range spec.ports[:spec.portRanges] {
		ranges += (len(*p.parts) - 1) * len(spec.clusterIPs)
	}
	return n, ranges
}

// countBackends counts, n times, the backends that a slice has at most for the ports of a Service.
func (svc *service) countBackends(sl *slice, n int) {
	if sl != nil && svc.wanted != nil {
		svc.backends[sl.family] += n * (min(len(svc.wanted.ports)-svc.wanted.portRanges, len(sl.ports)) + svc.wanted.portRanges) * len(sl.endpoints)
	}
}

// countElements has a Service, and others of its namespace, be served if there is room for them.
func (s *State) countElements(svc *service) {
	n, ranges := svc.elements()
	left, told := s.elements.set(svc, n), map[*service]bool{}
	for i, svc := range append(left, s.ranges.set(svc, ranges)...) {
		switch n, ranges := svc.elements(); {
		case told[svc], i >= len(left) && s.elements.over(svc): // that it is left out has been told
		case s.elements.over(svc):
			s.problems = append(s.problems, ProblemOf(svc.name, "spec.ports", fmt.Sprintf(
				"the Service is left out: it needs %d frontends, source ranges and endpoints, and its namespace may have %d, and %d more for each Service (namespaceElements)",
				n, s.elements.level, s.elements.free)))
		case s.ranges.over(svc):
			s.problems = append(s.problems, ProblemOf(svc.name, rangesField, fmt.Sprintf(
				"the Service is served without its ranges: it needs %d at its addresses, and its namespace may have %d", ranges, s.ranges.level)))
		}
		told[svc] = true
		s.serve(svc)
	}
}

// MostSlots returns how many slots a number of backends have at most because of their weights, but that each has one at
// least. A share is wrong by less than a slot: a fiftieth of the average with 50 slots for each backend, an eighth with 8,
// as 2,048 to 8,192 backends have.
func MostSlots(backends int) int {
	return min(max(1000, 50*backends), max(1<<14, 8*backends), 1<<16)
}

// algorithm returns how backends are chosen: as the Service says, if that is possible.
func (s *State) algorithm(svc *service) Algorithm {
	if svc.spec == nil || s.slots.over(svc) || svc.spec.Algorithm == LeastConnections && s.uncounted != nil {
		return Random
	}
	return svc.spec.Algorithm
}

// keepBudgets decides which Services have slots because of their algorithms and weights, before a change.
func (s *State) keepBudgets() {
	changed := map[*service]bool{}
	for _, e := range s.dirtyEndpoints {
		if now := e.slots(&s.config); now != e.counted {
			e.port.service.slots += now - e.counted
			e.counted, changed[e.port.service] = now, true
		}
	}
	for svc := range changed {
		n := svc.slots
		if n <= s.slots.each && !svc.ownSlots(&s.config) {
			n = 0
		}
		for _, svc := range s.slots.set(svc, n) {
			for _, p := range svc.ports {
				for _, e := range p.endpoints {
					if e != nil {
						s.markDirty(e)
					}
				}
			}
			if s.slots.over(svc) {
				s.problems = append(s.problems, ProblemOf(svc.name, "spec.ports", fmt.Sprintf(
					"the ports and endpoints of the Service need %d slots for its scheduler or weights, and its namespace may have %d: "+
						"endpoints are chosen at random, and all are equally likely", svc.slots, s.slots.level)))
			}
		}
	}
}

// ownSlots reports whether a Service has slots because of its annotations or those of its slices.
func (svc *service) ownSlots(c *Config) bool {
	return svc.spec != nil && (svc.spec.Scheduler != c.Balancing || svc.spec.policy.byZone || svc.spec.slowStart > 0 ||
		slices.ContainsFunc(svc.slices, func(sl *slice) bool { return sl.weight != DefaultWeight }))
}

// slots returns how many slots the algorithm and the weights of a Service need at most, on any node;
// 0 if each backend needs just one.
func (e *endpoints) slots(c *Config) (n int) {
	spec := e.port.service.spec
	if e.gone || spec == nil {
		return 0
	}
	backends := 0
	for _, n := range e.tally.all {
		backends += int(n)
	}
	switch {
	case spec.Algorithm.Hashes():
		n = c.tableSize(backends)
	case spec.policy.byZone:
		n = MostSlots(backends)
	case e.tally.weighted > 0 || e.followsLoads() || spec.slowStart > 0:
		divisor, sum := 0, 0
		for i := range e.entries {
			if en := &e.entries[i]; en.listed > 0 {
				sum += int(en.weight)
				for w := int(en.weight); w > 0; {
					divisor, w = w, divisor%w
				}
			}
		}
		n = sum / max(divisor, 1)
		if e.followsLoads() {
			n *= mostSteps(backends)
		}
		if spec.slowStart > 0 {
			n *= 10
		}
		n = min(n, MostSlots(backends))
	}
	pools := 0
	for _, p := range e.pools {
		if p != nil && !p.gone {
			pools++
		}
	}
	return n * pools
}
