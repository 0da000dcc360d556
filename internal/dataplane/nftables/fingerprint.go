// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"errors"
	"fmt"
	"hash"
	"hash/fnv"
	"slices"
	"strings"

	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
)

// fingerprint is a hash of what a table's rules do, as the kernel tells: of the
// rules, in their order, and of how base chains are attached. The chains that
// remember clients' backends come and go with Services and are not part of it.
//
// The kernel does not tell rules in the words in which they were given to it, so a
// fingerprint can be compared with an earlier one only. The one of rules that were
// just written is kept in the table, as the name of an empty chain.
type fingerprint uint64

// fingerprintPrefix starts the name of that chain.
const fingerprintPrefix = "rules-"

func (f fingerprint) chain() string { return fmt.Sprintf("%s%016x", fingerprintPrefix, uint64(f)) }

// outline is what a table has beside elements.
type outline struct {
	fingerprint
	chains     []string
	remembered map[string]int // rules in chains that remember
}

// outline reads a table's outline.
func (b *Backend) outline(s *schema) (o outline, err error) {
	bases := map[string]hash.Hash64{}
	rules := map[string]hash.Hash64{}
	err = errors.Join(
		nfnl.Undisturbed(func() error {
			o.chains = nil
			clear(bases)
			return b.conn.Chains(s.table, func(c nfnl.ChainInfo) {
				o.chains = append(o.chains, c.Name)
				if c.Base != nil {
					write(bases, c.Name, c.Base...)
				}
			})
		}),
		nfnl.Undisturbed(func() error {
			o.remembered = map[string]int{}
			clear(rules)
			return b.conn.Rules(s.table, func(r nfnl.RuleInfo) {
				if isRememberChain(r.Chain) {
					o.remembered[r.Chain]++
				} else {
					write(rules, r.Chain, r.Expressions, r.Comment)
				}
			})
		}),
	)
	all := fnv.New64a()
	for _, part := range []map[string]hash.Hash64{bases, rules} {
		for _, name := range sorted(part) {
			fmt.Fprintln(all, name, part[name].Sum64())
		}
	}
	o.fingerprint = fingerprint(all.Sum64())
	return o, err
}

// write adds parts to a chain's hash.
func write(to map[string]hash.Hash64, chain string, parts ...[]byte) {
	h := to[chain]
	if h == nil {
		h = fnv.New64a()
		to[chain] = h
	}
	for _, p := range parts {
		fmt.Fprint(h, len(p), ":")
		h.Write(p)
	}
}

func sorted(m map[string]hash.Hash64) (names []string) {
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// intact says whether the rules are still those that were written.
func (o *outline) intact() bool { return slices.Contains(o.chains, o.fingerprint.chain()) }

// marked is the name of the chain that says which skeleton the table has.
func (o *outline) marked() string {
	for _, name := range o.chains {
		if strings.HasPrefix(name, markerPrefix) {
			return name
		}
	}
	return ""
}
