// SPDX-License-Identifier: Apache-2.0

package fastpath

import (
	"fmt"
	"slices"

	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"github.com/slipstream-proxy/slipstream/internal/node/netif"
)

// others is what other programs have at interfaces that packets on the fast path would not pass, or would pass without their
// conntrack entry and mark.
type others struct {
	generation uint32           // of the ruleset that has the chains; 0 if unknown
	chains     []nfnl.BaseChain // with devices
	filters    map[int]string   // by interface; of the engine EBPF
}

const noSurvey = "Fast path: filters and chains at interfaces could not be read, will try again"

// readChains reads the chains at interfaces, without those that see all. After an error they are outdated.
func (c *Controller) readChains(seesAll func(*nfnl.BaseChain) bool) error {
	c.others.generation = 0
	generation, err := c.conn.Generation()
	if err != nil {
		return err
	}
	var chains []nfnl.BaseChain
	for _, f := range []nfnl.Family{nfnl.NetDev, nfnl.INET} {
		all, err := c.conn.BaseChains(f)
		if err != nil {
			return fmt.Errorf("list chains of family %s: %w", f, err)
		}
		chains = append(chains, slices.DeleteFunc(all, func(c nfnl.BaseChain) bool { return len(c.Devices) == 0 || seesAll(&c) })...)
	}
	c.others.generation, c.others.chains = generation, chains
	return nil
}

// chainsOutdated reports whether they may have changed since.
func (c *Controller) chainsOutdated() bool {
	generation, err := c.conn.Generation()
	return err != nil || generation != c.others.generation
}

// at describes one of them at an interface; "" if there is none.
func (o *others) at(i *netif.Interface) string {
	for _, chain := range o.chains {
		if slices.ContainsFunc(chain.Devices, func(d nfnl.Device) bool { return d.Is(i.Name) }) {
			return fmt.Sprintf("chain %s of table %s %s", chain.Name, chain.Table.Family, chain.Table.Name)
		}
	}
	return o.filters[i.Index]
}
