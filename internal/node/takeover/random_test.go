// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"encoding/base32"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// randomOthers are chains and rules of other programs, with jumps and counters, in the table
// filter. Chains come before and after kube-proxy's in the alphabet, as the kernel has
// them in that order.
func randomOthers(r *rand.Rand) string {
	var chains []string
	for _, prefix := range []string{"A", "KUBE-", "KUBE-NWPLCY-", "KUBE-SVC-", "Z"} {
		for range r.IntN(4) {
			chains = append(chains, fmt.Sprintf("%s%d", prefix, r.IntN(1e6)))
		}
	}
	var text strings.Builder
	fmt.Fprintf(&text, "*filter\n:INPUT DROP [%d:%d]\n", r.IntN(100), r.IntN(1000))
	for _, c := range chains {
		fmt.Fprintf(&text, ":%s - [0:0]\n", c)
	}
	matches := []string{"", "-p tcp -m tcp --dport 80", "-m comment --comment \"with \\\"quotes\\\"\"", "-m mark --mark 0x1",
		"-p udp -m udp --sport 53:99 -m conntrack --ctstate NEW"}
	targets := []string{"", "-j ACCEPT", "-j DROP", "-j RETURN", "-j MARK --set-xmark 0x3/0x3", "-j REJECT"}
	rules := func(chain string, below []string) {
		for range r.IntN(5) {
			target := targets[r.IntN(len(targets))]
			if len(below) > 0 && r.IntN(2) == 0 {
				target = []string{"-j ", "-g "}[r.IntN(2)] + below[r.IntN(len(below))]
			}
			fmt.Fprintf(&text, "[%d:%d] -A %s %s %s\n", r.IntN(9), r.IntN(999), chain, matches[r.IntN(len(matches))], target)
		}
	}
	for _, c := range []string{"INPUT", "FORWARD", "OUTPUT"} {
		rules(c, chains)
	}
	for i, c := range chains {
		rules(c, chains[i+1:])
	}
	return text.String() + "COMMIT\n"
}

// TestIPTablesRandom is TestIPTables with random rules of other programs.
func TestIPTablesRandom(t *testing.T) {
	eachVariant(t, func(t *testing.T, x *iptables) {
		for seed := range uint64(8) {
			others := randomOthers(rand.New(rand.NewPCG(seed, 0)))
			clean, both := &iptables{newNode(t), x.command}, &iptables{newNode(t), x.command}
			clean.restore(others)
			both.restoreRecorded("iptables")
			both.restore(others)
			both.takeOver()
			want := clean.save() + clean.run("", x.command, "-w", "10", "-S", "FORWARD") // the latter makes tables be there in both
			compare(t, fmt.Sprintf("seed %d: %s", seed, x.command), both.save()+both.run("", x.command, "-w", "10", "-S", "FORWARD"), want)
		}
	})
}

// TestIPTablesMany removes more chains than one netlink message holds.
func TestIPTablesMany(t *testing.T) {
	eachVariant(t, func(t *testing.T, x *iptables) {
		const services = 1500
		var text strings.Builder
		chain := func(prefix string, i int) string {
			hash := base32.StdEncoding.EncodeToString(fmt.Appendf(nil, "%010d", i))
			return prefix + hash[:16]
		}
		text.WriteString("*nat\n:KUBE-SERVICES - [0:0]\n:OTHER - [0:0]\n")
		for i := range services {
			fmt.Fprintf(&text, ":%s - [0:0]\n:%s - [0:0]\n", chain("KUBE-SVC-", i), chain("KUBE-SEP-", i))
		}
		text.WriteString("-A PREROUTING -j KUBE-SERVICES\n-A OTHER -j RETURN\n")
		for i := range services {
			fmt.Fprintf(&text, "-A KUBE-SERVICES -p tcp -m tcp --dport %d -j %s\n", i+1, chain("KUBE-SVC-", i))
			fmt.Fprintf(&text, "-A %s -m statistic --mode random --probability 0.5 -j %s\n", chain("KUBE-SVC-", i), chain("KUBE-SEP-", i))
			fmt.Fprintf(&text, "-A %s -p tcp -m tcp -j ACCEPT\n", chain("KUBE-SEP-", i))
		}
		x.restore(text.String() + "COMMIT\n")
		x.takeOver()
		if left := x.save(); strings.Contains(left, "KUBE-") || !strings.Contains(left, "-A OTHER -j RETURN") {
			t.Errorf("left:\n%.2000s", left)
		}
		if want := fmt.Sprintf("%d chains of %s", 2*services+1, x.table("nat")); len(x.removed) != 1 || x.removed[0] != want {
			t.Errorf("reported %q, want %q", x.removed, want)
		}
	})
}
