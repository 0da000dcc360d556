// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"errors"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"golang.org/x/sys/unix"
)

// nftWatch looks at iptables-nft. Its tables are those of nf_tables with the same names.
type nftWatch struct{ conn *nfnl.Conn }

func openNFT(netns int) (nftWatch, error) {
	conn, err := nfnl.Dial(netns)
	return nftWatch{conn}, err
}

func (w nftWatch) close() error { return w.conn.Close() }

func (w nftWatch) stamp([]*table) (s stamp, err error) {
	s.generation, err = w.conn.Generation()
	return s, err
}

func (w nftWatch) expect(s *stamp, _ desired.Family, _, _, commits int) {
	for range commits {
		s.generation = nfnl.NextGeneration(s.generation)
	}
}

func nftTable(f desired.Family, name string) nfnl.Table {
	if f == desired.IPv6 {
		return nfnl.Table{Family: nfnl.IPv6, Name: name}
	}
	return nfnl.Table{Family: nfnl.IPv4, Name: name}
}

// look reads chains, and the rules of others only, as listing 100,000 rules takes the kernel
// seconds. For a chain the kernel says how often it is used: by its own rules, and by those
// that lead to it. The latter are rules of ours, if these are as known, rules of base
// chains, and seldom rules of other chains, which are read if the sum is too high.
func (w nftWatch) look(f desired.Family, table string, known registry) (t *tally, err error) {
	of := nftTable(f, table)
	err = nfnl.Undisturbed(func() error {
		t = newTally()
		var base, others []string
		err := w.conn.Chains(of, func(c nfnl.ChainInfo) {
			switch {
			case owner.Owns(c.Name):
				t.rules[c.Name] = int32(c.Uses)
			case c.Base != nil:
				base = append(base, c.Name)
			default:
				others = append(others, c.Name)
			}
		})
		references := known.references()
		for name := range t.rules {
			t.rules[name] -= references[hashChain([]byte(name))]
		}
		subtract := func(chains []string) {
			for _, chain := range chains {
				err = errors.Join(err, w.conn.RuleJumps(of, chain, func(j nfnl.RuleJump) {
					t.jumps[j.To]++
					t.rules[j.To]--
				}))
			}
		}
		if subtract(base); t.differs(known) != "" {
			subtract(others)
		}
		return err
	})
	if errors.Is(err, unix.ENOENT) {
		return newTally(), nil
	}
	return t, err
}

func (w nftWatch) packets(f desired.Family, table, chain string) (all []uint64, err error) {
	err = nfnl.Undisturbed(func() error {
		all = nil
		return w.conn.ChainRules(nftTable(f, table), chain, func(r nfnl.RuleInfo) { all = append(all, r.Counted()) })
	})
	if errors.Is(err, unix.ENOENT) {
		err = nil
	}
	return all, err
}
