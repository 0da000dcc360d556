// SPDX-License-Identifier: Apache-2.0

package iptables

// Counts are numbers of rules, by address family (desired.IPv4, desired.IPv6) and table.
type Counts struct {
	Total [2]map[string]int // in the kernel
	Last  [2]map[string]int // that the last sync wrote
}

// RuleCounts is how many rules there are. It may be called by any goroutine.
func (b *Backend) RuleCounts() Counts {
	if c := b.counts.Load(); c != nil {
		return *c
	}
	return Counts{}
}

// count records how many rules there are after some steps.
func (b *Backend) count(steps []*step) {
	c := &Counts{}
	for _, name := range chainTables {
		for f := range families {
			if c.Total[f] == nil {
				c.Total[f], c.Last[f] = map[string]int{}, map[string]int{}
			}
			c.Total[f][name], c.Last[f][name] = 0, 0
		}
		for _, s := range steps {
			c.Total[s.table.family][name] = s.table.known[name].rules()
			c.Last[s.table.family][name] = s.scripts[name].ruleLines
		}
	}
	b.counts.Store(c)
}
