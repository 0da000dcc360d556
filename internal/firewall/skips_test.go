// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
)

// Rulesets as these programs make them, without what does not concern the hooks forward and postrouting. Those
// that begin with an asterisk are for iptables-restore.
var rulesets = []struct {
	name, rules string
	want        []string // what each line contains, in order
}{
	{name: "none"},
	{
		name: "ufw",
		rules: `*filter
:FORWARD DROP
:ufw-before-forward -
:ufw-before-logging-forward -
:ufw-user-forward -
:ufw-reject-forward -
-A FORWARD -j ufw-before-logging-forward
-A FORWARD -j ufw-before-forward
-A FORWARD -j ufw-reject-forward
-A ufw-before-forward -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A ufw-before-forward -p icmp -m icmp --icmp-type 3 -j ACCEPT
-A ufw-before-forward -j ufw-user-forward
-A ufw-user-forward -s 192.0.2.0/24 -j DROP
COMMIT
`,
	},
	{
		name: "firewalld",
		rules: `table inet firewalld {
	chain filter_FORWARD {
		type filter hook forward priority filter + 10; policy accept;
		ct state { established, related } accept
		ct status dnat accept
		iifname "lo" accept
		ct state invalid drop
		jump filter_FORWARD_ZONES
		reject with icmpx admin-prohibited
	}
	chain filter_FORWARD_ZONES { ip saddr 192.0.2.0/24 drop; }
	chain nat_POSTROUTING { type nat hook postrouting priority srcnat + 10; policy accept; oifname "eth0" masquerade; }
}`,
	},
	{
		name: "Docker",
		rules: `*filter
:FORWARD DROP
:DOCKER-USER -
:DOCKER-FORWARD -
:DOCKER-CT -
:DOCKER-ISOLATION-STAGE-1 -
:DOCKER-ISOLATION-STAGE-2 -
-A FORWARD -j DOCKER-USER
-A FORWARD -j DOCKER-FORWARD
-A DOCKER-FORWARD -j DOCKER-CT
-A DOCKER-FORWARD -j DOCKER-ISOLATION-STAGE-1
-A DOCKER-FORWARD -i docker0 -j ACCEPT
-A DOCKER-CT -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A DOCKER-ISOLATION-STAGE-1 -i docker0 ! -o docker0 -j DOCKER-ISOLATION-STAGE-2
-A DOCKER-ISOLATION-STAGE-2 -o docker0 -j DROP
COMMIT
`,
		want: []string{"may drop: table ip filter: chain DOCKER-ISOLATION-STAGE-2", "may drop: table ip filter: the policy of chain FORWARD"},
	},
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
		tcp flags syn drop
		limit rate over 10/second counter
		meta mark set 1
		ip dscp set ef
		log prefix "seen"
	}
	chain i { type filter hook input priority 0; drop; }
}`,
		want: []string{"may drop: table inet t: chain f", "limits:", "marks:", "changes:", "logs:"},
	},
	{
		name: "what is done by iptables",
		rules: `*mangle
-A FORWARD -m conntrack ! --ctstate ESTABLISHED -j DROP
-A FORWARD -m state --state NEW -j DROP
-A POSTROUTING -p udp -j MARK --set-mark 1
COMMIT
`,
		want: []string{"marks: table ip mangle: chain POSTROUTING"},
	},
}

// TestSkips evaluates rulesets for packets of established connections.
func TestSkips(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTBinary)
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
			got := SkipLines(all)
			ok := len(got) == len(r.want)
			for i := range min(len(got), len(r.want)) {
				ok = ok && strings.Contains(got[i], r.want[i])
			}
			if !ok {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(r.want, "\n"))
			}
		})
	}
}
