// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"strings"
	"testing"

	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
)

// TestIPTables removes kube-proxy's rules. The rules of other programs must then be the same as
// on a node that never had kube-proxy, including counters.
func TestIPTables(t *testing.T) {
	for _, mode := range []string{"iptables", "ipvs"} {
		t.Run(mode, func(t *testing.T) {
			eachVariant(t, func(t *testing.T, x *iptables) {
				clean := &iptables{newNode(t), x.command}
				clean.restoreOthers()
				want := clean.save()
				if mode == "ipvs" {
					kerneltest.Require(t, kerneltest.IPVS)
					x.recordIPVS()
				}
				x.restoreRecorded(mode)
				x.restoreOthers() // iptables-restore loses what policies have counted, so they come last
				if with := x.save(); with == want || !strings.Contains(with, "-j KUBE-SERVICES") {
					t.Fatalf("kube-proxy's rules are not there:\n%s", with)
				}
				x.takeOver()
				compare(t, x.command, x.save(), want)
				if len(x.removed) == 0 {
					t.Error("no removal was reported")
				}
				x.takeOver()
				if len(x.removed) > 0 {
					t.Errorf("a second time removed %v", x.removed)
				}
			})
		})
	}
}

// TestIPTablesAlone checks that only empty built-in chains are left.
func TestIPTablesAlone(t *testing.T) {
	eachVariant(t, func(t *testing.T, x *iptables) {
		x.restoreRecorded("iptables")
		x.takeOver()
		for line := range strings.Lines(x.save()) {
			if strings.HasPrefix(line, "[") || strings.Contains(line, "KUBE-") {
				t.Errorf("left: %s", line)
			}
		}
	})
}

// TestIPTablesUsed adds rules of another program that lead to kube-proxy's chains. These chains
// and those to which they lead must stay and be reported; all others are removed.
func TestIPTablesUsed(t *testing.T) {
	eachVariant(t, func(t *testing.T, x *iptables) {
		x.restoreRecorded("iptables")
		x.restore(`*nat
:CNI-HOSTPORT-SETMARK - [0:0]
-A CNI-HOSTPORT-SETMARK -j KUBE-MARK-MASQ
-A OUTPUT -p tcp -m tcp --dport 7 -j KUBE-EXT-CDGGSHYLG3RE2FKL
COMMIT
`)
		if err := x.ns.Do(func() error { return Remove(x.Context(), x.options()) }); err == nil {
			t.Error("no error")
		}
		said := strings.Join(x.failed, "\n")
		for _, want := range []string{
			"chain KUBE-MARK-MASQ in " + x.table("nat") + " stays: a rule in chain CNI-HOSTPORT-SETMARK",
			"chain KUBE-EXT-CDGGSHYLG3RE2FKL in " + x.table("nat") + " stays: a rule in chain OUTPUT",
		} {
			if !strings.Contains(said, want) {
				t.Errorf("not said: %s\nbut: %s", want, said)
			}
		}
		chains := map[string]bool{}
		for line := range strings.Lines(x.save()) {
			if name, ok := strings.CutPrefix(line, ":KUBE-"); ok {
				name, _, _ = strings.Cut(name, " ")
				chains["KUBE-"+name] = true
			}
		}
		for _, want := range []string{"KUBE-MARK-MASQ", "KUBE-EXT-CDGGSHYLG3RE2FKL", "KUBE-SVC-CDGGSHYLG3RE2FKL"} {
			if !chains[want] {
				t.Errorf("chain %s is gone", want)
			}
		}
		for chain := range chains {
			if strings.HasPrefix(chain, "KUBE-SERVICES") || strings.HasPrefix(chain, "KUBE-NODEPORTS") || chain == "KUBE-SVC-HZL2SQQAPJAF4FQH" {
				t.Errorf("chain %s is left", chain)
			}
		}
	})
}

// table is how one of the command's tables is called in messages.
func (x *iptables) table(name string) string {
	switch x.command {
	case "iptables-nft":
		return "iptables-nft table ip " + name
	case "ip6tables-nft":
		return "iptables-nft table ip6 " + name
	}
	return x.command + " table " + name
}

// TestNothing checks that a node without kube-proxy stays as it is, and that no tables are
// created.
func TestNothing(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTables)
	n := newNode(t)
	before := n.run("", "nft", "list", "ruleset")
	tables := n.run("", "cat", "/proc/self/net/ip_tables_names", "/proc/self/net/ip6_tables_names")
	n.takeOver()
	compare(t, "nftables", n.run("", "nft", "list", "ruleset"), before)
	compare(t, "the list of x_tables' tables", n.run("", "cat", "/proc/self/net/ip_tables_names", "/proc/self/net/ip6_tables_names"), tables)
	if len(n.removed) > 0 {
		t.Errorf("removed %v", n.removed)
	}
}
