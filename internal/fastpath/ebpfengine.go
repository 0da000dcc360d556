// SPDX-License-Identifier: Apache-2.0

package fastpath

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/fastpath/ebpf"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"github.com/slipstream-proxy/slipstream/internal/node/netif"
)

// others is what other programs have at interfaces that the engine EBPF has to leave to them. Its
// program comes before most filters of tc, and before chains of nf_tables at the ingress. Packets to
// pods do not pass those at the egress.
type others struct {
	generation uint32           // of the ruleset that has the chains; 0 if unknown
	chains     []nfnl.BaseChain // with devices
	filters    map[int]string   // by interface
}

const noSurvey = "Fast path: filters and chains at interfaces could not be read, will try again"

// ebpfEngine is the engine [EBPF]. The table asks its program to offload connections.
type ebpfEngine struct {
	*Controller
	program *ebpf.Engine
	others  others
}

func (c *ebpfEngine) skeleton() ([]nfnl.Chain, []*nfnl.Set) {
	return chainsForEBPF, nil
}

func (c *ebpfEngine) objects(*nfnl.Batch) {}

func (c *ebpfEngine) fits(t *nfnl.Contents) bool {
	return t.Flowtable(flowtableName) == nil && isForEBPF(t)
}

func (c *ebpfEngine) offload(rule writeRule) {
	rule(chainOffload, "", classified(), ret())
	rule(chainOffload, "", goTo(chainAsk))
	rule(chainAsk, "always; a copy that nft has loaded never matches", nfnl.UnlessLoaded(), request())
}

func (c *ebpfEngine) begin()            {}
func (c *ebpfEngine) programmed() error { return nil }

func (c *ebpfEngine) takes(i *netif.Interface) (bool, string) {
	if !i.Ethernet {
		return false, ""
	}
	return true, c.others.at(i)
}

func (c *ebpfEngine) setDevices(*nfnl.Batch, deviceSet) (refused, err error) {
	return c.program.SetInterfaces(c.chosen()), nil
}

func (c *ebpfEngine) recovers(error) bool                       { return false }
func (c *ebpfEngine) leave() error                              { return c.program.Keep(c.chosen()) }
func (c *ebpfEngine) keepsMTU() bool                            { return false }
func (c *ebpfEngine) renew(*nfnl.Contents) (*nfnl.Batch, error) { return &nfnl.Batch{}, nil }
func (c *ebpfEngine) flushed(f *Flush) error                    { return c.program.Delete(f.selects) }
func (c *ebpfEngine) checkTable(*nfnl.Contents) error           { return nil }
func (c *ebpfEngine) close() error                              { return c.program.Close() }
func (c *ebpfEngine) cleanup() error {
	return errors.Join(c.program.Detach(), ebpf.Remove(c.config.NetNS))
}

func (c *ebpfEngine) run(ctx context.Context) { c.program.Run(ctx) }

func (c *ebpfEngine) stats(s *Stats) error {
	e, err := c.program.Stats()
	s.Offloaded, s.Refused = e.Added, e.Refused
	return err
}

// check checks that the program is attached to the interfaces.
func (c *ebpfEngine) check() error {
	if c.unsynced {
		return nil
	}
	detached := c.program.Detached()
	if len(detached) == 0 {
		return nil
	}
	all, err := netif.Namespace(c.config.NetNS).List()
	if err != nil {
		return err
	}
	for index, l := range c.choose(all) { // others do not exist any more
		if l.chosen && detached[index] {
			return fmt.Errorf("%w: the BPF program is not attached to interface %s any more, or not pinned, or not the last one", dataplane.ErrDamaged, l.name)
		}
	}
	return nil
}

// outdated reports whether they may have changed since survey.
func (c *ebpfEngine) outdated() bool {
	generation, err := c.conn.Generation()
	return c.program.Outdated() || err != nil || generation != c.others.generation
}

// survey reads them. After an error they are outdated.
func (c *ebpfEngine) survey() error {
	c.others.generation = 0
	c.program.Outdated() // changes from now on count
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
		chains = append(chains, slices.DeleteFunc(all, func(c nfnl.BaseChain) bool { return len(c.Devices) == 0 })...)
	}
	filters, err := c.program.Filters()
	if err != nil {
		return err
	}
	c.others = others{generation, chains, filters}
	return nil
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
