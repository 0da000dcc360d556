// SPDX-License-Identifier: Apache-2.0

package iptables

// Counts are numbers of rules, by address family (desired.IPv4, desired.IPv6) and table.
type Counts struct {
	Total [2]map[string]int // that the kernel has of ours
	Last  [2]map[string]int // that the last sync wrote
}

// RuleCounts is how many rules there are. It may be called at any time, by anybody.
func (b *Backend) RuleCounts() Counts {
	if c := b.counts.Load(); c != nil {
		return *c
	}
	return Counts{}
}

func newCounts() (c [2]map[string]int) {
	for f := range c {
		c[f] = map[string]int{tableNAT: 0, tableFilter: 0}
	}
	return c
}

// count takes down what there is. Last is what was just written; nil for all.
func (b *Backend) count(last *[2]map[string]int) {
	c := &Counts{Total: newCounts()}
	for _, t := range b.tables {
		c.Total[t.family][tableNAT] = t.known.rules()
		c.Total[t.family][tableFilter] = t.filter.rules()
	}
	c.Last = c.Total
	if last != nil {
		c.Last = *last
	}
	b.counts.Store(c)
}
