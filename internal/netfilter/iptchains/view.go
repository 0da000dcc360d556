// SPDX-License-Identifier: Apache-2.0

package iptchains

import (
	"context"
	"errors"
	"slices"

	"github.com/slipstream-proxy/slipstream/internal/collect"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/xtables"
	"golang.org/x/sys/unix"
)

// View reads and changes a table.
type View interface {
	// Chains lists the table's chains, as they are now.
	Chains() ([]Chain, error)
	// Jumps lists the rules of one of them that lead to another.
	Jumps(chain string) ([]Jump, error)
	// Packets returns how many packets each rule of a chain has matched, in order. The
	// chain is not a built-in one. One that does not exist has no rules.
	Packets(chain string) ([]uint64, error)
	// Remove removes rules, and chains with their rules. No packet reaches the chains
	// after the removal of the former.
	Remove(ctx context.Context, rules []Jump, chains []string) error

	// lock keeps the commands of the variant from changing the table.
	lock(context.Context) (unlock func(), err error)
	close()
}

// Chain is a chain of a table. It is used by its rules, and by the rules that lead to it.
type Chain struct {
	Name string
	Uses int
}

// Jump is a rule that leads from one chain to another.
type Jump struct {
	From, To string
	rule     uint64 // in nf_tables its handle, in x_tables its index
}

// legacy is a table of iptables-legacy.
type legacy struct {
	conn  *xtables.Conn
	name  string
	table *xtables.Table // as last read
	index map[string]xtables.Chain
}

func openLegacy(t Table) (View, error) {
	if names, err := t.xtables().Tables(); err != nil || !slices.Contains(names, t.Name) {
		return nil, err
	}
	conn, err := xtables.Dial(t.xtables())
	if err != nil {
		return nil, err
	}
	return &legacy{conn: conn, name: t.Name}, nil
}

func (l *legacy) close() { l.conn.Close() }

func (l *legacy) lock(ctx context.Context) (func(), error) { return xtables.Lock(ctx) }

func (l *legacy) Chains() (_ []Chain, err error) {
	if l.table, err = l.conn.Read(l.name); err != nil {
		return nil, err
	}
	l.index = map[string]xtables.Chain{}
	jumps := map[string]int{}
	for _, c := range l.table.Chains() {
		l.index[c.Name] = c
		for i := c.First; i <= c.Last; i++ {
			jumps[l.table.Jump(i)]++
		}
	}
	return collect.From(l.table.Chains(), func(c xtables.Chain) Chain { return Chain{c.Name, c.Rules() + jumps[c.Name]} }), nil
}

func (l *legacy) Jumps(chain string) (all []Jump, err error) {
	c, ok := l.index[chain]
	for i := c.First; ok && i <= c.Last; i++ {
		if to := l.table.Jump(i); to != "" {
			all = append(all, Jump{chain, to, uint64(i)})
		}
	}
	return all, nil
}

func (l *legacy) Packets(chain string) (all []uint64, err error) {
	if _, err := l.Chains(); err != nil {
		return nil, err
	}
	c := l.index[chain]
	for i := range c.Rules() {
		all = append(all, l.table.Packets(c.First+1+i))
	}
	return all, nil
}

func (l *legacy) Remove(_ context.Context, rules []Jump, chains []string) error {
	remove := map[int]bool{}
	for _, j := range rules {
		remove[int(j.rule)] = true
	}
	for _, name := range chains {
		for i := l.index[name].First; i <= l.index[name].Last; i++ {
			remove[i] = true
		}
	}
	return l.conn.Replace(l.table, func(entry int) bool { return remove[entry] })
}

// nft is a table of iptables-nft, which is one of nf_tables with the same name.
type nft struct {
	conn  *nfnl.Conn
	table nfnl.Table
}

func openNFT(t Table) (View, error) {
	conn, err := nfnl.Dial(0)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Table(t.nft()); err != nil {
		conn.Close()
		if errors.Is(err, unix.ENOENT) || nfnl.IsUnsupported(err) {
			err = nil
		}
		return nil, err
	}
	return &nft{conn, t.nft()}, nil
}

func (n *nft) close() { n.conn.Close() }

func (n *nft) lock(context.Context) (func(), error) { return func() {}, nil }

func (n *nft) Chains() ([]Chain, error) {
	chains, err := n.conn.Chains(n.table)
	return collect.From(chains, func(c nfnl.ChainInfo) Chain { return Chain{c.Name, int(c.Uses)} }), err
}

func (n *nft) Jumps(chain string) (all []Jump, err error) {
	rules, err := n.conn.Rules(n.table, chain)
	for _, r := range rules {
		for _, to := range r.Jumps() {
			all = append(all, Jump{chain, to, r.Handle})
		}
	}
	return all, err
}

func (n *nft) Packets(chain string) ([]uint64, error) {
	rules, err := n.conn.Rules(n.table, chain)
	return collect.From(rules, nfnl.RuleInfo.Counted), err
}

// Remove removes the rules in one transaction. There can be so many chains that they take
// several, between which others can commit.
func (n *nft) Remove(ctx context.Context, rules []Jump, chains []string) error {
	var batch nfnl.Batch
	for _, j := range rules {
		batch.DeleteRule(n.table, j.From, j.rule)
	}
	if err := n.conn.Commit(0, &batch); err != nil {
		return err
	}
	batch.Reset()
	return n.conn.CommitPieces(ctx, &batch, func() {
		for _, chain := range chains {
			batch.FlushChain(n.table, chain)
		}
		for _, chain := range chains { // now no rule leads there
			batch.DeleteChain(n.table, chain)
		}
	})
}
