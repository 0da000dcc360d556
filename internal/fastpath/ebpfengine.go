// SPDX-License-Identifier: Apache-2.0

package fastpath

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/nftables/expr"
	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/fastpath/ebpf"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"github.com/slipstream-proxy/slipstream/internal/node/netif"
)

// ebpfEngine is the engine [EBPF]. The table asks its program to offload connections. The program comes before most filters
// of tc, and before chains of nf_tables at the ingress. Packets to pods do not pass those at the egress.
type ebpfEngine struct {
	*Controller
	program *ebpf.Engine
}

func (c *ebpfEngine) chains() []nfnl.Chain { return chainsForEBPF }

func (c *ebpfEngine) objects(*nfnl.Batch) {}

func (c *ebpfEngine) fits(t *nfnl.Contents) bool {
	return t.Flowtable(flowtableName) == nil && isForEBPF(t)
}

func (c *ebpfEngine) offload(rule writeRule) {
	// A packet to which a rule has given a class keeps it.
	rule(chainOffload, "", masked(meta(expr.MetaKeyPRIORITY), word(classOfPriority), expr.CmpOpNeq, word(0)), ret())
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
	return errors.Join(c.program.SetInterfaces(nil), c.program.Delete(func(*ebpf.Flow) bool { return true }), ebpf.Remove(c.config.NetNS))
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
	return c.program.Outdated() || c.chainsOutdated()
}

// survey reads them. After an error they are outdated.
func (c *ebpfEngine) survey() error {
	c.others.generation = 0
	c.program.Outdated() // changes from now on count
	filters, err := c.program.Filters()
	if err != nil {
		return err
	}
	c.others.filters = filters
	return c.readChains(func(*nfnl.BaseChain) bool { return false })
}
