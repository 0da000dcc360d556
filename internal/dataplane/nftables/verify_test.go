// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables/expr"
	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/dataplanetest"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
		{"insert rule ip slipstream services drop", "chain services has 8 rules instead of 7"},
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
		{"add set ip slipstream strange { type ipv4_addr; }", "set strange does not belong there"},
		{"delete element ip slipstream picks { 4 }; flush chain ip slipstream pick-4; add rule ip slipstream pick-4 drop; add rule ip slipstream pick-4 accept; add element ip slipstream picks { 4 : goto pick-4 }", "rule 1 of chain pick-4 is another one"},
		{"flush chain ip slipstream slot-pick-128", "chain slot-pick-128 has 0 rules instead of 15"},
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
			if err := k.Check(t.Context()); err == nil && !strings.Contains(c.damage, "element") && !strings.Contains(c.damage, "set") {
				t.Error("Check finds nothing")
			}
		})
	}
}

// TestForeignElements adds elements whose keys differ in one bit from those that are there, and gives elements values
// that differ in one bit: a look finds each, also in the bytes that fill a field up to a register.
func TestForeignElements(t *testing.T) {
	t.Run("ports", func(t *testing.T) { testForeignElements(t, &schemas[desired.IPv4], "") })
	t.Run("ranges", func(t *testing.T) { testForeignElements(t, &rangedSchemas[desired.IPv6], "tcp/3000-3100") })
}

func testForeignElements(t *testing.T, r *schema, ranges string) {
	k := newKernel(t)
	s := desired.New(desired.Config{})
	fancyWith(s, func(svc *corev1.Service) {
		svc.Annotations = map[string]string{desired.AnnotationPortRanges: ranges}
	})
	dataplanetest.Reconcile(t, k.Dataplane, s)
	dataplanetest.Has(t, k.Dataplane, s)
	conn := k.dial()
	var tried []string
	for _, set := range r.sets() {
		var some *nfnl.Element
		keys := map[string]bool{}
		if err := conn.Elements(r.table, set.Name, func(e nfnl.Element) {
			keys[string(e.Key)] = true
			e.Key, e.Value, e.Comment = slices.Clone(e.Key), slices.Clone(e.Value), slices.Clone(e.Comment)
			some = &e
		}); err != nil {
			t.Fatal(err)
		}
		if some == nil || set.Flags&(unix.NFT_SET_EVAL|unix.NFT_SET_INTERVAL) != 0 || set.DataType == nfnl.TypeVerdict {
			continue
		}
		tried = append(tried, set.Name)
		for at := range len(some.Key) + len(some.Value) {
			if at < len(some.Key) && strings.HasSuffix(set.Name, "pools") {
				continue // nothing leads to it, as to that of a Service whose addresses others have
			}
			if at%4 == 1 || at%4 == 2 && at < 12 {
				continue // as the bytes beside it
			}
			both := slices.Concat(some.Key, some.Value)
			key, value := both[:len(some.Key)], both[len(some.Key):]
			for bit := byte(0x80); ; bit >>= 1 { // far from the numbers of other pools
				if both[at] ^= bit; at >= len(key) || !keys[string(key)] {
					break
				}
			}
			var damage, mend nfnl.Batch
			if at >= len(key) {
				damage.DeleteElement(r.table, set, key)
			}
			damage.AddElement(r.table, set, key, value, string(some.Comment))
			mend.DeleteElement(r.table, set, key)
			if at >= len(key) {
				mend.AddElement(r.table, set, key, some.Value, string(some.Comment))
			}
			if err := conn.Commit(0, &damage); err != nil {
				t.Fatal(err)
			}
			if v, err := dataplane.Look(t.Context(), k, &s.Full().Change); err != nil || len(v.Differences) == 0 {
				t.Errorf("%s: error %v, nothing found of %x : %x", set.Name, err, key, value)
			}
			if err := conn.Commit(0, &mend); err != nil {
				t.Fatal(err)
			}
		}
	}
	var key []byte
	if err := conn.Elements(r.table, r.clusterIPs.Name, func(e nfnl.Element) { key = slices.Clone(e.Key) }); err != nil {
		t.Fatal(err)
	}
	var limited nfnl.Batch
	limited.DeleteElement(r.table, r.clusterIPs, key)
	limited.AddElementWith(r.table, r.clusterIPs, key, &expr.Limit{Rate: 1, Unit: expr.LimitTimeSecond})
	if err := conn.Commit(0, &limited); err != nil {
		t.Fatal(err)
	}
	if v, err := dataplane.Look(t.Context(), k, &s.Full().Change); err != nil || len(v.Differences) == 0 {
		t.Errorf("error %v, nothing found of a limit of an element", err)
	}
	dataplanetest.Reconcile(t, k.Dataplane, s)
	dataplanetest.Has(t, k.Dataplane, s)
	if len(tried) < 12 {
		t.Errorf("only tried %v", tried)
	}
}

// TestForeignSet: a rule of another process has a set without a name, which goes with the rule. The repair keeps the
// table, and with it what it remembers.
func TestForeignSet(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTBinary)
	k := newKernel(t)
	s := desired.New(desired.Config{})
	web(s, 1, dataplanetest.Hosts(3)...)
	dataplanetest.Reconcile(t, k.Dataplane, s)
	handle := func() string {
		first, _, _ := strings.Cut(k.nft("--handle", "list", "table", "ip", tableName), "\n")
		return first
	}
	before := handle()
	k.nft("add", "rule", "ip", tableName, "services", "tcp dport { 80, 443 } counter")
	dataplanetest.Reconcile(t, k.Dataplane, s)
	dataplanetest.Has(t, k.Dataplane, s)
	if after := handle(); after != before || !strings.Contains(after, "handle") {
		t.Errorf("%q was replaced with %q", before, after)
	}
}

// TestVerifyCreatedRules damages chains that were created when they were first needed, so that they keep their
// number of rules: a rule drops, rules are in another order, a rule computes something else.
func TestVerifyCreatedRules(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTables)
	k := newKernel(t)
	s := desired.New(desired.Config{})
	for i, scheduler := range []string{"", "rr", "maglev", "maglev,maglev-port", ""} {
		hosts := 100
		if i == 2 || i == 3 {
			hosts = 2 // for small tables
		}
		web(s, i+1, dataplanetest.Hosts(hosts)...)
		svc := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("web-%d", i+1), Annotations: map[string]string{desired.AnnotationScheduler: scheduler}},
			Spec:       corev1.ServiceSpec{ClusterIPs: []string{fmt.Sprintf("10.96.0.%d", i+1), fmt.Sprintf("fd00:96::%x", i+1)}, Ports: []corev1.ServicePort{{Port: 80}}},
		}
		if i == 4 {
			svc.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		}
		s.SetService(svc)
	}
	conn, table := k.dial(), schemas[desired.IPv6].table
	differs := func(t *testing.T, want bool) {
		t.Helper()
		reader := k.open()
		defer reader.Close()
		look := dataplane.Look
		if !want {
			look = dataplane.Verify // a dump may miss elements while the kernel changes a set
		}
		v, err := look(t.Context(), reader, &s.Full().Change)
		if err != nil || (len(v.Differences) > 0) != want || want && !strings.Contains(v.String(), " is another one") {
			t.Errorf("error %v, differences\n%s", err, v)
		}
		if err := k.Check(t.Context()); (err != nil) != want {
			t.Errorf("Check: %v", err)
		}
	}
	kinds := map[string]bool{}
	dataplanetest.Reconcile(t, k.Dataplane, s)
	differs(t, false)
	chains, err := conn.Chains(table)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range chains {
		kind := strings.TrimRight(c.Name, "0123456789")
		rules, err := conn.Rules(table, c.Name)
		if err != nil || !schemas[desired.IPv6].isCreated(c.Name) || len(rules) == 0 || kinds[kind] {
			continue
		}
		kinds[kind] = true
		for damage, change := range map[string]func([]nfnl.RuleInfo){
			"a rule drops": func(all []nfnl.RuleInfo) {
				var b nfnl.Batch
				b.AddRule(table, c.Name, all[len(all)-1].Text(), drop())
				written, _ := b.Written()
				all[len(all)-1].Expressions = written.Rules[0].Expressions
			},
			"the order": func(all []nfnl.RuleInfo) {
				all[0].Expressions, all[0].Comment = all[len(all)-1].Expressions, all[len(all)-1].Comment
			},
			"a constant": func(all []nfnl.RuleInfo) {
				constants := map[string]uint16{"numgen": unix.NFTA_NG_MODULUS, "hash": unix.NFTA_HASH_MODULUS, "dynset": unix.NFTA_DYNSET_TIMEOUT}
				for _, r := range all {
					for _, e := range nfnl.Attributes(r.Expressions) {
						if n := constants[nfnl.Text(e, unix.NFTA_EXPR_NAME)]; n != 0 {
							constant := nfnl.Attr(nfnl.Attr(e, unix.NFTA_EXPR_DATA), n)
							constant[len(constant)-2] ^= 4
							return
						}
					}
				}
			},
		} {
			t.Run(c.Name+": "+damage, func(t *testing.T) {
				damaged := slices.Clone(rules)
				for i := range damaged {
					damaged[i].Expressions = slices.Clone(damaged[i].Expressions)
				}
				if change(damaged); reflect.DeepEqual(damaged, rules) {
					return // a single rule has no order
				}
				var b nfnl.Batch
				b.FlushChain(table, c.Name)
				for _, r := range damaged {
					b.AddRuleInfo(table, r)
				}
				if err := conn.Commit(0, &b); err != nil {
					t.Logf("the kernel refuses it: %v", err)
					return
				}
				differs(t, true)
				dataplanetest.Reconcile(t, k.Dataplane, s)
			})
		}
	}
	if len(kinds) < 6 {
		t.Errorf("damaged chains %v", kinds)
	}
}
