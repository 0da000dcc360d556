// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"os"
	"strings"
	"testing"

	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
)

// TestIdleLegacyTable: the command is needed only for tables that do something.
func TestIdleLegacyTable(t *testing.T) {
	kerneltest.Require(t, kerneltest.IPTablesLegacy)
	n := newLab(t)
	path := os.Getenv("PATH")
	for _, c := range []struct {
		command string
		needed  bool
	}{
		{"iptables-legacy -t filter -S; ip6tables-legacy -t mangle -S", false},
		{"iptables-legacy -N idle; iptables-legacy -A idle -j DROP", false},
		{"iptables-legacy -A FORWARD -j idle", true},
		{"iptables-legacy -D FORWARD 1", false},
		{"ip6tables-legacy -P FORWARD DROP", true},
	} {
		t.Setenv("PATH", path)
		if out, err := n.Run(t.Context(), "sh", "-c", "set -e; "+c.command); err != nil {
			t.Fatalf("%s: %v\n%s", c.command, err, out)
		}
		t.Setenv("PATH", "")
		if _, err := examine(t, n); (err != nil) != c.needed {
			t.Errorf("%s: without the command: %v", c.command, err)
		}
	}
}

// FuzzLegacyTable: no rule, however odd, ends the process.
func FuzzLegacyTable(f *testing.F) {
	f.Add("-s 10.0.0.1/32 !")
	f.Add("!")
	f.Add("-j")
	f.Add("-m")
	f.Add(`-p tcp -m tcp ! --dport 80:90 -m comment --comment "a ! b" -j DROP`)
	f.Fuzz(func(t *testing.T, options string) {
		w := Packet{}
		for _, b := range legacyTable("iptables", "filter", []string{":INPUT ACCEPT [0:0]", "-A INPUT " + strings.ReplaceAll(options, "\n", " ")}) {
			b.walker.packet = &w
			for _, r := range b.walker.rules["INPUT"] {
				r.eval()
			}
		}
	})
}
