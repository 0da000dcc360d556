// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"bytes"
	"slices"
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/dataplane/dataplanetest"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
)

// TestSecondTries: look-ups that can find nothing during a commit, up to Linux 6.16, are repeated by the rules
// (see ruleWriter.dispatchBy). No kernel of the tests has several processors and this race, so the
// rules are compared.
func TestSecondTries(t *testing.T) {
	k := newKernel(t)
	s := desired.New(desired.Config{})
	fancy(s)
	dataplanetest.Reconcile(t, k.Dataplane, s)
	for f := range schemas {
		all, err := k.conn.Contents(schemas[f].table)
		if err != nil {
			t.Fatal(err)
		}
		chains := map[string][]nfnl.RuleInfo{}
		for _, r := range all.Rules {
			chains[r.Chain] = append(chains[r.Chain], r)
		}
		services := slices.DeleteFunc(chains[chainServices], func(r nfnl.RuleInfo) bool { // external ranges leave after the second try of external ports
			return bytes.Contains(r.Expressions, []byte(chainExternalMissed+"\x00"))
		})
		first, second := services[:len(services)/2], services[len(services)/2:]
		for i := range max(len(first), len(second)) {
			if len(first) != len(second) || !bytes.Equal(first[i].Expressions, second[i].Expressions) {
				t.Fatalf("%s: the %d rules of chain %s are not the same ones twice", schemas[f].table.Family, len(services), chainServices)
			}
		}
		tries := 0
		for chain, rules := range chains {
			for i := 0; i < len(rules); i++ {
				uses := func(set string) bool { return bytes.Contains(rules[i].Expressions, []byte(set+"\x00")) }
				if !uses("\x00"+schemas[f].pools.Name) && !uses("\x00"+schemas[f].members.Name) {
					continue
				}
				tries++
				if chain == chainDispatch && bytes.Contains(rules[i+1].Expressions, []byte(chainMissed+"\x00")) { // packets to ports in ranges leave
					rules = slices.Delete(slices.Clone(rules), i+1, i+2)
				}
				if i+1 == len(rules) || !bytes.Equal(rules[i].Expressions, rules[i+1].Expressions) {
					t.Errorf("%s: rule %d of chain %s, %s, has no second try", schemas[f].table.Family, i, chain, rules[i].Comment)
				}
				i++
			}
		}
		if tries < 6 {
			t.Errorf("%s: only %d rules look up pools", schemas[f].table.Family, tries)
		}
	}
}
