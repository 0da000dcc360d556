// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"context"
	"net/netip"
	"strings"
	"testing"

	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
)

// rulesOfFirewalls is what these rules need beside [kerneltest.IPTablesNFT]: nft's log (CONFIG_NFT_LOG), and of iptables the
// target LOG and the matches limit, recent and string (CONFIG_NETFILTER_XT_MATCH_STRING and so on).
var rulesOfFirewalls = kerneltest.Define("rules of firewalls", func() error {
	ns, err := lab.NewNamespace()
	if err != nil {
		return err
	}
	defer ns.Close()
	for _, command := range []string{
		"nft add table inet probe", "nft add chain inet probe c", "nft add rule inet probe c log",
		"iptables-nft -A FORWARD -m limit --limit 3/min -j LOG",
		"iptables-nft -A FORWARD -m recent --set -j ACCEPT",
		"iptables-nft -A FORWARD -m string --string x --algo bm -j DROP",
	} {
		if _, err := ns.Run(context.Background(), "sh", "-c", command); err != nil {
			return err
		}
	}
	return nil
}, kerneltest.NFTBinary, kerneltest.IPTablesNFT)

// Those that begin with an asterisk are for iptables-restore.
var rulesets = []struct {
	name, rules string
	want        []string // what each line contains, in order
	kept        []string // of the lines of what keeps connections off the fast path
}{
	{name: "none"},
	{
		name:  "counters alone",
		rules: "table inet t { chain f { type filter hook forward priority 0; counter; ct state established counter; }; }",
	},
	{
		name: "what is done to packets",
		rules: `table inet t {
	chain f {
		type filter hook forward priority 0;
		ct state new drop
		ip saddr 192.0.2.1 drop
		ip saddr 192.0.2.1 meta length > 1000 drop
		meta mark set meta mark & 0xffff
		tcp flags syn drop
		limit rate over 10/second counter
		meta mark set 1
		ip dscp set ef
		log prefix "seen"
	}
	chain i { type filter hook input priority 0; drop; }
}`,
		want: []string{"changes:", "logs:", "may drop: table inet t: chain f", "may drop: table inet t: chain f", "limits:", "marks:"},
		kept: []string{"changes:", "logs:", "may drop: table inet t: chain f, rule with handle 5", "limits:", "marks:"},
	},
	{
		name: "what is done by iptables",
		rules: `*mangle
-A FORWARD -m conntrack ! --ctstate ESTABLISHED -j DROP
-A FORWARD -m state --state NEW -j DROP
-A FORWARD -p tcp --tcp-flags ALL NONE -j DROP
-A FORWARD -j MARK --set-xmark 0/1
-A POSTROUTING -p udp -j MARK --set-mark 1
-A POSTROUTING -m string --string x --algo bm -j DROP
COMMIT
`,
		want: []string{"marks: table ip mangle: chain POSTROUTING", "may drop: table ip mangle: chain POSTROUTING"},
		kept: []string{"marks: table ip mangle: chain POSTROUTING", "may drop: table ip mangle: chain POSTROUTING"},
	},
}

// TestSkips evaluates rulesets for packets of established connections.
func TestSkips(t *testing.T) {
	kerneltest.Require(t, rulesOfFirewalls)
	l, err := lab.New()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	n, err := l.Node("n1", lab.NodeOptions{Addresses: []netip.Prefix{netip.MustParsePrefix("192.168.100.11/24")}})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rulesets {
		t.Run(r.name, func(t *testing.T) {
			command := "nft -f -"
			if strings.HasPrefix(r.rules, "*") {
				command = "iptables-nft-restore"
			}
			out, err := n.Run(t.Context(), "sh", "-c", "nft flush ruleset; "+command+" <<'END'\n"+r.rules+"\nEND")
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			var all []Skip
			if err := n.Do(func() error { all = Skips(t.Context()); return nil }); err != nil {
				t.Fatal(err)
			}
			for every, want := range map[bool][]string{true: r.want, false: r.kept} {
				got := SkipLines(all, every)
				ok := len(got) == len(want)
				for i := range min(len(got), len(want)) {
					ok = ok && strings.Contains(got[i], want[i])
				}
				if !ok {
					t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
				}
			}
		})
	}
}
