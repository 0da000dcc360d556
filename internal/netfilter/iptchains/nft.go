// SPDX-License-Identifier: Apache-2.0

package iptchains

import (
	"context"
	"errors"

	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"golang.org/x/sys/unix"
)

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

func (n *nft) Chains() (all []Chain, err error) {
	chains, err := n.conn.Chains(n.table)
	for _, c := range chains {
		all = append(all, Chain{c.Name, int(c.Uses)})
	}
	return all, err
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

func (n *nft) Packets(chain string) (all []uint64, err error) {
	rules, err := n.conn.Rules(n.table, chain)
	for _, r := range rules {
		all = append(all, r.Counted())
	}
	return all, err
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
