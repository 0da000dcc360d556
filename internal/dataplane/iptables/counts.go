// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/iptchains"
	"slices"
)

// Counts are numbers of rules, by address family (desired.IPv4, desired.IPv6) and table.
type Counts struct {
	Total [2]map[string]int // in the kernel
	Last  [2]map[string]int // that the last sync wrote
}

// RuleCounts is how many rules there are. It may be called by any goroutine.
func (b *Dataplane) RuleCounts() Counts {
	if c := b.counts.Load(); c != nil {
		return *c
	}
	return Counts{}
}

// count records how many rules there are after some steps.
func (b *Dataplane) count(steps []*step) {
	c := &Counts{Total: [2]map[string]int{{}, {}}, Last: [2]map[string]int{{}, {}}}
	for _, name := range chainTables {
		for f := range families {
			c.Total[f][name], c.Last[f][name] = 0, 0
		}
		for _, s := range steps {
			c.Total[s.table.family][name] = s.table.known[name].rules()
			c.Last[s.table.family][name] = s.scripts[name].ruleLines
		}
	}
	b.counts.Store(c)
}

// rejections are the reasons for which the rules of chains reject packets, in the order of the rules: often one for
// TCP and one for others.
var rejections = map[string][]string{
	chainFirewall: {
		dataplane.SourceNotAllowed, dataplane.NoEndpoints, dataplane.NoEndpoints, dataplane.NoLocalEndpoints,
		dataplane.UnknownPort, dataplane.UnknownPort, dataplane.UnallocatedAddress,
	},
	chainNodeReject: {dataplane.NoEndpoints, dataplane.NoEndpoints},
	chainNodeDrop:   {dataplane.NoLocalEndpoints},
}

// invalidRule is the index in chainForward of the rule that drops invalid packets, which does
// not exist if conntrack accepts TCP segments out of window.
const invalidRule = 4

// PacketCounts are numbers that the kernel counts, by desired.Family. They start from 0 when
// the rules are created again.
type PacketCounts struct {
	Rejected dataplane.Rejected
	Invalid  [2]uint64 // forwarded packets that conntrack considers invalid
}

// PacketCounts reads the counters of rules. It can be called at any time, by any goroutine.
func (b *Dataplane) PacketCounts() (c PacketCounts, err error) {
	for _, f := range families { // b.tables are the loop's
		if slices.ContainsFunc(b.missing, func(m dataplane.Missing) bool { return m.Family == f }) {
			continue
		}
		byReason := map[string]uint64{}
		c.Rejected[f] = byReason
		err := b.view(f, tableFilter, func(v iptchains.View) error {
			for chain, reasons := range rejections {
				rejected, err := v.Packets(chain)
				if err != nil {
					return err
				}
				for i := range min(len(rejected), len(reasons)) {
					byReason[reasons[i]] += rejected[i]
				}
			}
			forwarded, err := v.Packets(chainForward)
			if len(forwarded) > invalidRule {
				c.Invalid[f] = forwarded[invalidRule]
			}
			return err
		})
		if err != nil {
			return c, err
		}
	}
	return c, nil
}
