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

func openNFT(table nfnl.Table) (view, error) {
	conn, err := nfnl.Dial(0)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Table(table); err != nil {
		conn.Close()
		if errors.Is(err, unix.ENOENT) || nfnl.IsUnsupported(err) {
			err = nil
		}
		return nil, err
	}
	return &nft{conn, table}, nil
}

func (n *nft) close() { n.conn.Close() }

func (n *nft) lock(context.Context) (func(), error) { return func() {}, nil }

func (n *nft) chains() (names []string, err error) {
	err = nfnl.Undisturbed(func() error {
		names = nil
		return n.conn.Chains(n.table, func(c nfnl.ChainInfo) { names = append(names, c.Name) })
	})
	return names, err
}

// countRules reads once: there may be so many rules that others commit during each reading.
func (n *nft) countRules(rules map[string]int) error {
	err := n.conn.Rules(n.table, func(r nfnl.RuleInfo) { rules[r.Chain]++ })
	if errors.Is(err, nfnl.ErrInterrupted) {
		err = nil
	}
	return err
}

func (n *nft) jumps(chain string) (all []jump, err error) {
	err = nfnl.Undisturbed(func() error {
		all = nil
		return n.conn.RuleJumps(n.table, chain, func(j nfnl.RuleJump) { all = append(all, jump{j.To, j.Handle}) })
	})
	return all, err
}

// remove removes the jumps in one transaction: after it no packet reaches the chains.
// There can be so many chains that they take several, between which others can commit.
func (n *nft) remove(ctx context.Context, p *plan) error {
	var batch nfnl.Batch
	for _, j := range p.jumps {
		batch.DeleteRule(n.table, j.chain, j.rule)
	}
	if err := n.conn.Commit(0, &batch); err != nil {
		return err
	}
	batch.Reset()
	_, err := n.conn.CommitPieces(ctx, &batch, func() {
		for _, chain := range p.chains {
			batch.FlushChain(n.table, chain)
		}
		for _, chain := range p.chains { // now no rule leads there
			batch.DeleteChain(n.table, chain)
		}
	})
	return err
}
