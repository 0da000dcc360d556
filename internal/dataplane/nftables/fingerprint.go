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

// fingerprint is a hash of a table's rules as the kernel returns them, in order, and of
// the hooks of base chains. Chains for session affinity are excluded, because they depend
// on Services.
//
// The kernel's encoding of a rule differs from the encoding in which it was sent, so a
// fingerprint can only be compared with an earlier one. The fingerprint of newly written
// rules is stored in the table, as the name of an empty chain.
type fingerprint uint64

// fingerprintPrefix is the prefix of that chain's name.
const fingerprintPrefix = "rules-"

func (f fingerprint) chain() string { return fmt.Sprintf("%s%016x", fingerprintPrefix, uint64(f)) }

// outline is the content of a table without elements.
type outline struct {
	fingerprint
	chains     []string
	remembered map[string]int // number of rules in each chain for session affinity
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

// write adds parts to the hash of a chain.
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

// intact reports whether the rules match the stored fingerprint.
func (o *outline) intact() bool { return slices.Contains(o.chains, o.fingerprint.chain()) }

// marked returns the name of the chain that identifies the table's skeleton.
func (o *outline) marked() string {
	for _, name := range o.chains {
		if strings.HasPrefix(name, markerPrefix) {
			return name
		}
	}
	return ""
}
