// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"errors"
	"strings"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"golang.org/x/sys/unix"
)

// generation watches iptables-nft: its tables are those of nf_tables with the same
// names.
type generation struct{ conn *nfnl.Conn }

func openGeneration(netns int) (*generation, error) {
	conn, err := nfnl.Dial(netns)
	if err != nil {
		return nil, err
	}
	return &generation{conn}, nil
}

func (g *generation) close() error { return g.conn.Close() }

func (g *generation) stamp() (s stamp, err error) {
	s.values[0].generation, err = g.conn.Generation()
	return s, err
}

// look asks for chains first, of which the kernel tells how much they are used. To have it
// list 100,000 rules takes seconds, so that is for when something is wrong.
func (g *generation) look(f desired.Family, table string, known registry) (t *tally, err error) {
	of := nfnl.Table{Family: nfnl.IPv4, Name: table}
	if f == desired.IPv6 {
		of.Family = nfnl.IPv6
	}
	for _, count := range []func(nfnl.Table, registry, *tally) error{g.countUses, g.countRules} {
		err = nfnl.Undisturbed(func() error {
			t = newTally()
			return count(of, known, t)
		})
		switch {
		case errors.Is(err, unix.ENOENT):
			return newTally(), nil
		case err != nil:
			return nil, err
		case t.differs(known) == "":
			return t, nil
		}
	}
	return t, nil
}

// countUses takes for a chain's rules the uses of it that are not by rules that lead to
// it: by ours, if they are as they are known, and by those in base chains. Rules in other chains of
// others can lead to ours too, which makes the number too high.
func (g *generation) countUses(of nfnl.Table, known registry, t *tally) error {
	var base []string
	err := g.conn.Chains(of, func(c nfnl.ChainInfo) {
		if strings.HasPrefix(c.Name, prefix) {
			t.rules[c.Name] = int32(c.Uses)
		} else if c.Base != nil {
			base = append(base, c.Name)
		}
	})
	if err != nil {
		return err
	}
	for _, chain := range base {
		if err := g.conn.RuleJumps(of, chain, func(j nfnl.RuleJump) { t.entries[j.To]++ }); err != nil {
			return err
		}
	}
	references := known.references()
	for name := range t.rules {
		t.rules[name] -= references[hashChain([]byte(name))] + int32(t.entries[name])
	}
	return nil
}

// countRules counts each rule.
func (g *generation) countRules(of nfnl.Table, _ registry, t *tally) error {
	return g.conn.Rules(of, func(r nfnl.RuleInfo) {
		if strings.HasPrefix(r.Chain, prefix) {
			t.rules[r.Chain]++
			return
		}
		r.Jumps(func(to string) { t.entries[to]++ })
	})
}
