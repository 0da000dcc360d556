// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/dataplanetest"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/test/kernel/finding"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
)

var sealPattern = regexp.MustCompile(sealPrefix + "[0-9a-f]{16}")

// TestVerifyRules damages chains and rules, which a process that has not written them finds.
func TestVerifyRules(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTBinary)
	k := newKernel(t)
	s := desired.New(desired.Config{})
	web(s, 1, dataplanetest.Hosts(3)...)
	web(s, 2, dataplanetest.Hosts(100)...) // has chains of its own
	for _, c := range []struct{ damage, want string }{
		{"flush chain ip slipstream masq", "chain masq has 0 rules instead of 2"},
		{"insert rule ip slipstream services drop", "chain services has 7 rules instead of 6"},
		{"insert rule ip6 slipstream input drop", "ip6: chain input has 2 rules instead of 1"},
		{"flush chain ip slipstream masq; add rule ip slipstream masq drop; add rule ip slipstream masq accept", "chains or rules were modified"},
		{"add chain ip slipstream other", "chain other does not belong there"},
		{"add rule ip slipstream SEAL drop", "has 1 rules instead of 0"},
		{"add chain ip slipstream other { type filter hook input priority 0; policy drop; }", "chain other does not belong there"},
		{"add chain ip slipstream rules-0 { type filter hook input priority 0; policy drop; }", "chain rules-0 does not belong there"},
		{"add chain ip slipstream slot-x; add rule ip slipstream slot-x drop", "chain slot-x has 1 rules instead of 0"},
		{"add chain ip slipstream services { policy drop; }", ""}, // not a base chain: nft refuses
		{"add chain ip slipstream output { policy drop; }", "chains or rules were modified"},
		{"flush chain ip slipstream input; delete chain ip slipstream input", "chain input is missing"},
		{"flush chain ip slipstream output; delete chain ip slipstream output; add chain ip slipstream output { type nat hook output priority 5; }; add rule ip slipstream output jump services", "chains or rules were modified"},
		{"add table ip slipstream { flags dormant; }", "the table is dormant"},
		{"flush chain ip slipstream slot-pick-128", "chain slot-pick-128 has 0 rules instead of 16"},
		{"delete element ip slipstream picks { 2 }; add element ip slipstream picks { 2 : goto discard }", `picks leads 2 to "discard" instead of "pick-2"`},
		{"delete table ip slipstream; add table ip slipstream", "remember does not exist"},
		{"flush ruleset", "- ClusterIP"},
	} {
		t.Run(c.damage, func(t *testing.T) {
			dataplanetest.Reconcile(t, k.Dataplane, s)
			reader := k.open()
			defer reader.Close()
			dataplanetest.Has(t, reader, s)
			seal := sealPattern.FindString(k.nft("list", "table", "ip", tableName))
			out, err := k.ns.Run(t.Context(), "nft", strings.Replace(c.damage, "SEAL", seal, 1))
			if c.want == "" {
				if err == nil {
					t.Error("nft accepts this")
				}
				return
			}
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			v, err := dataplane.Look(t.Context(), reader, &s.Full().Change)
			if err != nil || !strings.Contains(v.String(), c.want) {
				t.Errorf("error %v, no %q in\n%s", err, c.want, v)
			}
			if err := k.Check(t.Context()); err == nil && !strings.Contains(c.damage, "element") {
				t.Error("Check finds nothing")
			}
		})
	}
}

// TestVerifyCreatedRules replaces a rule of a chain that was created when it was first needed.
func TestVerifyCreatedRules(t *testing.T) {
	finding.Open(t, "first-use 1: verify and Check only count the rules of chains that were created for few pools")
	kerneltest.Require(t, kerneltest.NFTBinary)
	k := newKernel(t)
	s := desired.New(desired.Config{})
	web(s, 2, dataplanetest.Hosts(100)...)
	dataplanetest.Reconcile(t, k.Dataplane, s)
	rules := slices.Repeat([]string{"add rule ip slipstream slot-pick-128 drop"}, draws+2)
	if out, err := k.ns.Run(t.Context(), "nft", "flush chain ip slipstream slot-pick-128; "+strings.Join(rules, "; ")); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	v, err := dataplane.Look(t.Context(), k, &s.Full().Change)
	if err != nil || len(v.Differences) == 0 {
		t.Errorf("error %v, no difference is found", err)
	}
}
