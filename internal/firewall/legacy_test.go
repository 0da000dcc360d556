// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"strings"
	"testing"
)

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
